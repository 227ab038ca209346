import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

const root = import.meta.dirname;
const files = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.js"];

/** Returns the hash of everything the page is made of; test_view_page.py makes the same. */
function sourcesHash() {
  const sources = readdirSync(join(root, "src")).map((name) => `src/${name}`);
  const hash = createHash("sha256");
  for (const name of [...files, ...sources].sort()) {
    hash.update(`${name}\n`).update(readFileSync(join(root, name)));
  }
  return hash.digest("hex");
}

/**
 * Makes the script a plain one before the place of the data: a module would wait until all of a
 * large run is parsed.
 */
const plainScript = {
  name: "plain-script",
  enforce: "post",
  generateBundle: {
    order: "post",
    handler(_, bundle) {
      for (const asset of Object.values(bundle)) {
        if (!asset.fileName.endsWith(".html")) continue;
        const page = String(asset.source);
        const found = /<script type="module"[^>]*>([\s\S]+?)<\/script>\s*/.exec(page);
        if (!found) throw new Error("the page has no script");
        const mark = "<!--agentrl:data-->";
        const [head, tail] = page.replace(found[0], () => "").split(mark);
        const meta = `<meta name="agentrl-sources" content="${sourcesHash()}" />\n  </head>`;
        const script = `<script>(() => {${found[1]}})();</script>\n    ${mark}`;
        asset.source = head.replace("</head>", () => meta) + script + tail;
      }
    },
  },
};

export default defineConfig({
  root,
  logLevel: "warn",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [viteSingleFile(), plainScript],
  build: { outDir: join(root, "dist"), emptyOutDir: true, target: "es2022", modulePreload: false },
});
