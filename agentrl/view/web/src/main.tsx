/** The page: what is open, and the bar above it. */

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Compare } from "./compare";
import { embeddedIndex, type Run, runOf, servedIndex } from "./data";
import { ALL, type Filter } from "./filter";
import { GroupView, type Marks } from "./group";
import { HELP, useKeys } from "./keys";
import { Overview } from "./overview";
import { go, usePlace } from "./route";
import { Groups, Trajectories } from "./tables";
import { type Look, TrajectoryView } from "./trajectory";
import "./style.css";

const VIEWS = ["overview", "groups", "trajectories"] as const;
const POLL_MS = 2000;

type Theme = "light" | "dark";

function useTheme(): [Theme, () => void] {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [chosen, setChosen] = useState<Theme | null>(null);
  const [own, setOwn] = useState<Theme>(system.matches ? "dark" : "light");
  useEffect(() => {
    const changed = () => setOwn(system.matches ? "dark" : "light");
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  const theme = chosen ?? own;
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
  }, [theme]);
  return [theme, () => setChosen(theme === "dark" ? "light" : "dark")];
}

function Page({ run, lost }: { run: Run; lost: string }) {
  const place = usePlace();
  const [filter, setFilter] = useState<Filter>(ALL);
  const [look, setLook] = useState<Look>({ isTokens: false, colour: "source" });
  const [marked, setMarked] = useState<number[]>([]);
  const [theme, turnTheme] = useTheme();
  const help = useRef<HTMLDialogElement>(null);
  const marks: Marks = {
    marked,
    onMark: (id) =>
      setMarked((ids) => (ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id].slice(-2))),
    onCompare: () => {
      const [one, other] = marked;
      if (one !== undefined && other !== undefined) go({ view: "compare", one, other });
    },
  };
  const up = () => {
    if (place.view === "trajectory") {
      const row = run.groupOf[run.rowOfTrajectory.get(place.trajectory) ?? 0] ?? 0;
      go({ view: "group", group: run.index.groups.id[row] ?? 0 });
    } else if (place.view === "group" || place.view === "compare") go({ view: "groups" });
    else go({ view: "overview" });
  };
  useKeys({
    "1": () => go({ view: "overview" }),
    "2": () => go({ view: "groups" }),
    "3": () => go({ view: "trajectories" }),
    "/": () => {
      if (place.view !== "groups" && place.view !== "trajectories") go({ view: "trajectories" });
      setTimeout(() => document.getElementById("search")?.focus());
    },
    "?": () => help.current?.showModal(),
    d: turnTheme,
    Escape: up,
    u: up,
  });
  useEffect(() => {
    const left = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key === "Escape" && target.closest("input, select")) target.blur();
    };
    addEventListener("keydown", left);
    return () => removeEventListener("keydown", left);
  }, []);
  useEffect(() => scrollTo(0, 0), [place]);
  const shared = { run, filter, onFilter: setFilter };
  const isOn = (view: (typeof VIEWS)[number]) =>
    place.view === view || (view === "groups" && place.view === "group") || (view === "trajectories" && place.view === "trajectory");
  return (
    <>
      <a class="skip" href="#view" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>("main")?.focus(); }}>Skip to the content</a>
      <header class="bar">
        <a class="brand" href="#/overview">{run.index.run.name}</a>
        <nav aria-label="Views">
          {VIEWS.map((view) => (
            <a key={view} href={`#/${view}`} aria-current={isOn(view) ? "page" : undefined}>
              {view[0]?.toUpperCase() + view.slice(1)}
            </a>
          ))}
          {marked.length > 0 && (
            <button class="quiet" disabled={marked.length < 2} onClick={marks.onCompare}>
              Compare {marked.length} of 2
            </button>
          )}
        </nav>
        <span class="right">
          {run.served && <span class="muted live" role="status">{lost || "live"}</span>}
          <button class="quiet" onClick={turnTheme} aria-label={`Use the ${theme === "dark" ? "light" : "dark"} theme`}>
            {theme === "dark" ? "Light" : "Dark"}
          </button>
          <button class="quiet" onClick={() => help.current?.showModal()} aria-label="Keys">?</button>
        </span>
      </header>
      {place.view === "overview" && <Overview run={run} />}
      {place.view === "groups" && <Groups {...shared} />}
      {place.view === "trajectories" && <Trajectories {...shared} />}
      {place.view === "group" && <GroupView run={run} id={place.group} marks={marks} />}
      {place.view === "trajectory" && (
        <TrajectoryView run={run} id={place.trajectory} marks={marks} look={look} onLook={setLook} />
      )}
      {place.view === "compare" && (
        <Compare run={run} one={place.one} other={place.other} marks={marks} look={look} onLook={setLook} />
      )}
      <dialog ref={help} aria-label="Keys" onClick={(event) => event.target === event.currentTarget && event.currentTarget.close()}>
        <form method="dialog">
          <h2>Keys</h2>
          <div class="help">
            {HELP.map(([where, keys]) => (
              <section key={where}>
                <h3>{where}</h3>
                <dl>
                  {keys.map(([key, what]) => (
                    <div key={key}>
                      <dt>{key.split(" ").map((one) => (one === "or" ? " or " : <kbd key={one}>{one}</kbd>))}</dt>
                      <dd>{what}</dd>
                    </div>
                  ))}
                </dl>
              </section>
            ))}
          </div>
          <button class="quiet">Close</button>
        </form>
      </dialog>
    </>
  );
}

function App({ first }: { first: Run }) {
  const [run, setRun] = useState(first);
  const [lost, setLost] = useState("");
  useEffect(() => {
    if (!first.served) return;
    let isOver = false;
    const poll = async () => {
      try {
        const index = await servedIndex();
        if (index && !isOver) setRun(runOf(index, true));
        setLost("");
      } catch {
        setLost("the server is gone");
      }
      if (!isOver) setTimeout(poll, POLL_MS);
    };
    const timer = setTimeout(poll, POLL_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, []);
  return <Page run={run} lost={lost} />;
}

async function begin(options: { served?: boolean } = {}): Promise<void> {
  const root = document.getElementById("app");
  if (!root) return;
  try {
    const served = options.served === true;
    const index = served ? await servedIndex() : await embeddedIndex();
    if (!index) throw new Error("the server has nothing to show");
    root.replaceChildren();
    render(<App first={runOf(index, served)} />, root);
  } catch (error) {
    const said = document.createElement("p");
    said.className = "notice page";
    said.textContent = `This run cannot be shown: ${error instanceof Error ? error.message : error}`;
    root.replaceChildren(said);
  }
}

/** Called by the page once the tables have been read, before the stories are. */
Object.assign(window, { agentrlBegin: begin });
