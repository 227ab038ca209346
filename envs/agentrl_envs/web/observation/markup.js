// The page's markup, pruned to what matters, with the ids of observe.js. Loaded after it.

const KEPT = [
  "type", "name", "href", "alt", "title", "placeholder", "value", "role", "for", "class", "colspan",
];
const VOID = new Set(["INPUT", "IMG", "BR", "HR"]);

class Markup {
  constructor(wants, ids) {
    this.wants = wants;
    this.ids = ids;
    this.lines = [];
    this.elements = 0;
    this.stop = false;
    this.until = performance.now() + wants.deadlineMs;
  }

  children(node, depth) {
    for (const child of node.shadowRoot ? node.shadowRoot.childNodes : node.childNodes) {
      if (this.stop) return;
      if (child.nodeType === 3) this.words(child.data, depth);
      else if (child.nodeType === 1) this.element(child, depth);
    }
  }

  words(data, depth) {
    const text = clean(data, this.wants.maxText);
    if (text) this.lines.push("  ".repeat(depth) + escaped(text));
  }

  element(element, depth) {
    const tag = element.tagName.toUpperCase();
    if (SKIPPED.has(tag) && tag !== "OPTION") return;
    if (element.getAttribute("aria-hidden") === "true") return;
    const style = getComputedStyle(element);
    if (tag !== "OPTION" && (style.display === "none" || style.opacity === "0")) return;
    if (++this.elements > this.wants.maxNodes || performance.now() > this.until) {
      this.stop = true;
      return;
    }
    const unseen = style.visibility !== "visible";
    const given = unseen ? "" : this.attributes(element);
    const wrapper = /^(DIV|SPAN|SECTION|MAIN|ARTICLE|TBODY)$/.test(tag) && !given;
    if (unseen || wrapper) return this.children(element, depth);
    const name = tag.toLowerCase();
    const indent = "  ".repeat(depth);
    const before = this.lines.length;
    const open = `${indent}<${name}${given}>`;
    this.lines.push(open);
    if (VOID.has(tag)) return;
    this.children(tag === "IFRAME" ? bodyOf(element) ?? element : element, depth + 1);
    const inner = this.lines.splice(before + 1);
    const [only] = inner;
    if (inner.length <= 1 && (only?.length ?? 0) < 100) {
      this.lines[before] = `${open}${(only ?? "").trim()}</${name}>`;
    } else this.lines.push(...inner, `${indent}</${name}>`);
  }

  attributes(element) {
    const id = this.ids.has(element) ? eye.ids.get(element) : undefined;
    let given = id === undefined ? "" : ` ref="${id}"`;
    for (const key of KEPT) {
      const raw = key === "value" ? this.value(element) : element.getAttribute(key);
      const value = clean(raw, this.wants.maxText);
      if (value) given += ` ${key}="${escaped(value)}"`;
    }
    for (const key of ["checked", "disabled", "selected"]) if (element[key] === true) given += ` ${key}`;
    return given;
  }

  value(element) {
    if (element.type === "password") return "•".repeat(element.value?.length ?? 0);
    return /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) ? element.value : "";
  }
}

function bodyOf(frame) {
  try {
    return frame.contentDocument?.body ?? null;
  } catch {
    return null;
  }
}

function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}

function markup({ wants, ids }) {
  const acted = new Set(ids.map((id) => elementOf(id)).filter(Boolean));
  const pruned = new Markup(wants, acted);
  if (document.body) pruned.children(document.body, 0);
  const all = pruned.stop ? document.getElementsByTagName("*").length : 0;
  return { lines: pruned.lines, left: Math.max(0, all - pruned.elements) };
}

globalThis.markup = markup;
