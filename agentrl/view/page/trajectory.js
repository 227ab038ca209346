/** One trajectory: what was said, or its tokens; beside it, what came of it. */

import { button, fill, h } from "./dom.js";
import { endsOf, number, seconds, signed, visible, whole, words } from "./format.js";
import { crumbs, missing, reading, watchStory } from "./group.js";
import { meanAdvantage, tokensOf, turnTimes } from "./path.js";
import { addressOf, go, note } from "./route.js";
import { messages } from "./said.js";
import { COLOURS, legend, makeTokens, tokenFacts } from "./tokens.js";

const COLOUR_KEYS = { s: "source", e: "entropy", a: "advantage", r: "ratio", v: "age" };

/** Turns whose times are shown. */
const MOST_TIMES = 100;

/** Makes the choice between conversation and tokens, and of what colours them. */
export function lookBar(look, onLook) {
  const choice = (label, isOn, change) => h("button", { type: "button", "aria-pressed": String(isOn), onclick: () => onLook(change) }, label);
  return h(
    "div",
    { class: "switch" },
    h(
      "span",
      { role: "group", "aria-label": "What is shown", class: "segmented" },
      choice("Conversation", !look.isTokens, { isTokens: false }),
      choice("Tokens", look.isTokens, { isTokens: true }),
    ),
    look.isTokens &&
      h(
        "span",
        { role: "group", "aria-label": "Colour by", class: "segmented" },
        COLOURS.map((name) => choice(name[0].toUpperCase() + name.slice(1), look.colour === name, { colour: name })),
      ),
  );
}

/** Returns the keys that change the look. */
export function lookKeys(look, onLook) {
  const keys = { t: () => onLook({ isTokens: !look.isTokens }) };
  for (const [key, colour] of Object.entries(COLOUR_KEYS)) keys[key] = () => onLook({ isTokens: true, colour });
  return keys;
}

/** Makes what came of a trajectory. */
export function outcomeSection({ which, story, told, tokens }) {
  const parent = told.fork && story.trajectories.find((one) => one.id === told.fork.parent);
  const facts = [
    ["Outcome", h("span", { class: told.outcome.startsWith("failed") && "bad" }, words(told.outcome))],
    ["Reward", number(told.reward)],
    story.answer && ["Answer wanted", visible(story.answer.slice(0, 80))],
    ...Object.entries(told.components).map(([name, value]) => [words(name), number(value)]),
    ["Advantage", signed(meanAdvantage(told))],
    ["Sampled tokens", whole(tokens.filter((token) => token.source === "sampled").length)],
    ["All tokens", whole(tokens.length)],
    ["Tool calls", whole(told.calls)],
    ["Time", seconds(told.seconds)],
    told.attempt > 0 && ["Tries before", whole(told.attempt)],
    parent && ["Branch of", h("a", { href: addressOf("trajectory", [[which, parent.id]]) }, `trajectory ${parent.sample}`)],
    parent && ["World copied by", told.fork.strategy],
  ];
  return h(
    "section",
    { "aria-label": "What came of it" },
    h("h2", {}, "Outcome"),
    h("dl", { class: "pairs" }, facts.map((one) => one && h("div", {}, h("dt", {}, one[0]), h("dd", {}, one[1])))),
  );
}

function timesSection(story, told) {
  const all = turnTimes(story, told);
  if (!all.length) return null;
  const longest = [...all].sort((one, other) => other.policy + other.world - one.policy - one.world).slice(0, MOST_TIMES);
  const turns = longest.sort((one, other) => one.turn - other.turn);
  const [, most] = endsOf([1e-9, ...turns.map((turn) => turn.policy + turn.world)]);
  const part = (name, value) => h("i", { class: name, style: { width: `${(100 * value) / most}%` } });
  return h(
    "section",
    { "aria-label": "Time per turn" },
    h("h2", {}, "Time per turn"),
    turns.length < all.length && h("p", { class: "muted" }, `the ${turns.length} longest of ${whole(all.length)}`),
    h("ul", { class: "legend" }, h("li", {}, h("i", { class: "swatch sampled" }), "policy"), h("li", {}, h("i", { class: "swatch tool" }), "environment")),
    h(
      "ol",
      { class: "times" },
      turns.map(({ turn, policy, world }) =>
        h(
          "li",
          {},
          h("span", { class: "muted" }, turn),
          h("span", { class: "bar", title: `policy ${seconds(policy)}, environment ${seconds(world)}` }, part("sampled", policy), part("tool", world)),
          h("span", {}, seconds(policy + world)),
        ),
      ),
    ),
  );
}

/** Makes the page of a trajectory; `?token=57` or `?turn=2` is brought into sight and marked. */
export function makeTrajectory({ runs, place, marks, look }) {
  const [which, id] = place.ids[0];
  let run = runs[which];
  let at = run?.rowOfTrajectory.get(id);
  if (at === undefined) return { node: h("main", { class: "page" }, missing(`trajectory ${id}`)), keys: {}, update() {} };
  const row = run.groupOf[at];
  const { groups, trajectories } = run.index;
  const group = addressOf("group", [[which, groups.id[row]]]);
  const asked = (name) => (/^\d+$/.test(place.query.get(name) ?? "") ? Number(place.query.get(name)) : -1);
  const addressAt = (query) => addressOf("trajectory", [[which, id]], query);
  let [token, turn] = [asked("token"), asked("turn")];
  if (token >= 0) look.isTokens = true;
  else if (turn >= 0) look.isTokens = false;
  let [story, told, tokens, box] = [null, null, [], null];
  const [steps, body, aside, about] = [h("span", { class: "steps" }), h("div", { class: "main" }), h("aside"), h("div")];
  const content = h("div", { class: "stack" }, reading());

  function sibling(by) {
    const next = at + by;
    if (next < run.firstOf[row] || next >= run.firstOf[row + 1]) return;
    go(addressOf("trajectory", [[which, run.index.trajectories.id[next]]]));
  }

  function drawSteps() {
    const isMarked = marks.idsOf(which).includes(id);
    fill(
      steps,
      button("Previous", () => sibling(-1), { disabled: at === run.firstOf[row] }),
      button("Next", () => sibling(1), { disabled: at + 1 === run.firstOf[row + 1] }),
      button(isMarked ? "Marked" : "Mark to compare", mark, { "aria-pressed": String(isMarked) }),
    );
  }

  function mark() {
    marks.toggle(which, id);
    drawSteps();
  }

  /** Tells of a token; one that was chosen is in the address. */
  function choose(chosen, isChosen, isSought = false) {
    token = chosen;
    box?.show(token, isSought);
    fill(about, tokenFacts(tokens[token], token, addressAt({ token })));
    if (isChosen && tokens[token]) note(addressAt({ token }));
  }

  function onLook(change) {
    if (change.isTokens === false && tokens[token]) turn = tokens[token].turn;
    Object.assign(look, change);
    draw();
    seek();
  }

  function conversation() {
    const sought = told.messages.findIndex((message) => message.turn === turn);
    return messages({ said: told.messages, story, linkOf: (number) => addressAt({ turn: number }), sought });
  }

  function draw() {
    box = look.isTokens ? makeTokens({ tokens, colour: look.colour, onCurrent: choose }) : null;
    fill(
      body,
      lookBar(look, onLook),
      box ? [legend(tokens, look.colour), box.node] : conversation(),
      told.error && h("p", { class: "notice bad" }, visible(told.error)),
    );
    fill(
      aside,
      outcomeSection({ which, story, told, tokens }),
      box ? h("section", { "aria-label": "Token" }, h("h2", {}, "Token"), about) : timesSection(story, told),
    );
    if (box) choose(token, false);
  }

  /** Brings what the address asks for into sight. */
  function seek() {
    if (look.isTokens) {
      if (token >= tokens.length) fill(about, h("p", { class: "bad" }, `There is no token ${token} here, the last is ${tokens.length - 1}.`));
      else if (token >= 0) choose(token, false, "far");
    } else if (turn >= 0) {
      const found = body.querySelectorAll(`[data-turn="${turn}"]`);
      for (const one of found) one.classList.add("here");
      if (found.length) found[0].scrollIntoView({ block: "start" });
      else body.prepend(h("p", { class: "notice", role: "status" }, `There is no turn ${turn} here.`));
    }
  }

  function drawStory(found) {
    const isFirst = told === null;
    story = found;
    told = story?.trajectories.find((one) => one.id === id) ?? null;
    if (!told) {
      const why = groups.why[row] ? `: ${visible(groups.why[row])}` : "";
      return fill(content, h("p", { class: "notice" }, `What was said here is not on this page${why}.`));
    }
    tokens = tokensOf(run, row, story, told);
    draw();
    if (isFirst) {
      fill(content, h("div", { class: "split" }, body, aside));
      // What the address asks for can be scrolled to once it has a place.
      requestAnimationFrame(seek);
    }
  }

  const move = (by) => look.isTokens && told && choose(Math.max(0, Math.min(tokens.length - 1, token + by)), true, "near");
  drawSteps();
  const updateStory = watchStory(run, row, drawStory);
  return {
    node: h(
      "main",
      { class: "page trajectory" },
      crumbs(
        [
          h("a", { href: addressOf("groups", [], which ? { run: 1 } : {}) }, "Groups"),
          `step ${groups.step[row]}`,
          h("a", { href: group }, `group ${groups.id[row]}`),
          `trajectory ${trajectories.sample[at]}`,
        ],
        steps,
      ),
      content,
    ),
    keys: {
      ...lookKeys(look, (change) => told && onLook(change)),
      j: () => sibling(1),
      k: () => sibling(-1),
      ArrowRight: () => move(1),
      ArrowLeft: () => move(-1),
      m: mark,
      c: marks.compare,
    },
    up: () => go(group),
    update(newRuns) {
      run = newRuns[which];
      // A group that is under way grows, and moves those after it.
      at = run.rowOfTrajectory.get(id) ?? at;
      drawSteps();
      updateStory(run);
    },
  };
}
