/** What was said: messages, tool calls, pictures. */

import { button, fill, h } from "./dom.js";
import { count, seconds, signed, visible } from "./format.js";

export function textBlock(text) {
  return text && h("div", { class: "text", dir: "auto" }, visible(text));
}

export function pictures(names, story) {
  if (!names?.length) return null;
  return h(
    "div",
    { class: "pictures" },
    names.map((name, place) => {
      const data = story.pictures[name] ?? "left out";
      // Decoded before the next paint: a permalink scrolls to where the turn then is.
      if (data.startsWith("data:image/")) return h("img", { src: data, alt: `picture ${place + 1} of this message`, decoding: "sync" });
      return h("p", { class: "muted" }, `A picture is ${data}.`);
    }),
  );
}

/** Messages in the page at once; more come when they are asked for. */
const MESSAGES = 400;

/**
 * Makes a conversation; `same` messages are those of the other one, `linkOf(turn)` is an address,
 * and the message at the place `sought` is in the page from the beginning.
 */
export function messages({ said, story, same = 0, linkOf, sought = same }) {
  const list = h("ol", { class: "messages" });
  let first = sought < MESSAGES ? 0 : sought - MESSAGES / 2;
  let last = Math.min(said.length, first + MESSAGES);
  const more = (size, when, turn) =>
    size > 0 && h("li", {}, button(`Show ${count(Math.min(MESSAGES, size), `${when} message`)} of ${size}`, () => {
      turn();
      draw();
    }));

  function draw() {
    fill(
      list,
      more(first, "earlier", () => {
        first = Math.max(0, first - MESSAGES);
      }),
      said.slice(first, last).map((message, offset) => [
        same > 0 && first + offset === same && h("li", { class: "parts", role: "separator" }, "the same up to here"),
        messageItem(message, story, first + offset < same, linkOf),
      ]),
      more(said.length - last, "later", () => {
        last = Math.min(said.length, last + MESSAGES);
      }),
    );
  }

  draw();
  return list;
}

function messageItem(message, story, isSame, linkOf) {
  const isEmpty = !message.text && !message.calls?.length && !message.pictures?.length && !message.malformed?.length;
  return h(
    "li",
    { class: `message ${message.role} ${isSame ? "same" : ""}`, "data-turn": message.turn },
    h(
      "header",
      {},
      h("span", { class: "role" }, message.role === "tool" && message.name ? visible(message.name) : message.role),
      h("a", { class: "muted", href: linkOf(message.turn), title: "Link to this turn" }, `turn ${message.turn}`),
      message.reward !== undefined && message.reward !== 0 && h("span", {}, `reward ${signed(message.reward)}`),
      message.s !== undefined && message.role === "tool" && h("span", { class: "muted" }, `at ${seconds(message.s)}`),
    ),
    textBlock(message.text),
    message.calls?.map((call) =>
      h(
        "div",
        { class: "call" },
        h("span", { class: "call-name" }, visible(call.name)),
        Object.entries(call.arguments).map(([name, value]) =>
          h("div", { class: "argument" }, h("span", { class: "muted" }, visible(name)), h("pre", { class: "text" }, visible(value))),
        ),
      ),
    ),
    message.malformed?.map((error) => h("p", { class: "bad" }, `A call could not be read: ${visible(error)}`)),
    pictures(message.pictures, story),
    isEmpty && h("p", { class: "muted" }, "nothing"),
  );
}
