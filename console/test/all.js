// Unit tests of the console's pure functions. `npm test` bundles them for Node.js.
import "./markdown.test.js";
import "./math.test.js";
import "./metrics.test.js";
import "./server.test.js";
