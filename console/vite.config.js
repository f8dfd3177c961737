// Builds the console into one HTML file: script and style are inline, so that the server needs one route, and the hashes of
// both make a strict Content-Security-Policy.
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { defineConfig } from "vite";

const server = process.env.SCONCE_URL ?? "http://127.0.0.1:8080";
const routes = ["/v1", "/v2", "/embed", "/rerank", "/predict", "/similarity", "/tokenize", "/decode", "/info", "/metrics", "/startupz", "/readyz", "/livez", "/health", "/api", "/apply-template", "/openapi.json"];

/** Puts the built script and style into the page. */
function singleFile() {
    return {
        name: "single-file",
        apply: (_config, { command, isSsrBuild }) => command === "build" && !isSsrBuild,
        writeBundle({ dir }) {
            const read = (name) => readFileSync(`${dir}/${name}`, "utf8").trim();
            const [script, style] = [read("console.js"), read("console.css")];
            if (/<\/script|<!--/i.test(script) || /<\/style/i.test(style)) {
                throw new Error("the bundle has text that ends an inline script or style");
            }
            const page = read("index.html")
                .replace(/\s*<link rel="stylesheet"[^>]*>/, () => `\n<style>${style}</style>`)
                .replace(/\s*<script type="module"[^>]*><\/script>/, "")
                .replace("</body>", () => `<script type="module">${script}</script>\n</body>`);
            writeFileSync(`${dir}/console.html`, `${page}\n`);
            for (const name of ["console.js", "console.css", "index.html"]) rmSync(`${dir}/${name}`);
        },
    };
}

export default defineConfig(({ isSsrBuild }) => ({
    plugins: [singleFile()],
    oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
    server: { proxy: Object.fromEntries(routes.map((path) => [path, server])) },
    build: {
        outDir: "../target/console",
        emptyOutDir: true,
        target: "es2022",
        cssTarget: ["chrome123", "firefox120", "safari17.5"],
        modulePreload: false,
        assetsInlineLimit: 0,
        rollupOptions: {
            output: {
                entryFileNames: isSsrBuild ? "[name].js" : "console.js",
                assetFileNames: "console[extname]",
            },
        },
    },
    // Unit tests are one file without dependencies.
    ssr: { noExternal: true },
}));
