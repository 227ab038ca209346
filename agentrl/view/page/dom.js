/** Elements, without a framework. Whatever a policy wrote becomes text, never markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Makes an HTML element; children are nodes, texts, lists of them, or null for nothing. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Makes an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Puts children in the place of those that an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [property, own] of Object.entries(value)) element.style.setProperty(property, own);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "");
}

/** Calls `draw` with the width of an element, now and whenever it changes. */
export function watchWidth(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === width || element.clientWidth === 0) return;
    width = element.clientWidth;
    draw(width);
  }).observe(element);
}

/** Pairs of a name and a value as a list of definitions. */
export function definitions(className, pairs) {
  return h("dl", { class: className }, pairs.map(([name, ...value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function button(label, onclick, attributes = {}) {
  return h("button", { class: "quiet", type: "button", onclick, ...attributes }, label);
}
