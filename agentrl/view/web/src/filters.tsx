/** The bar above both tables. */

import { useRef, useState } from "preact/hooks";
import { type Run, saying } from "./data";
import { ALL, type Filter, isAll } from "./filter";
import { words } from "./format";

export function Filters(props: {
  run: Run;
  filter: Filter;
  onFilter: (filter: Filter) => void;
  found: string;
}) {
  const { run, filter, onFilter } = props;
  const [searching, setSearching] = useState(false);
  const latest = useRef(0);
  const set = (change: Partial<Filter>) => onFilter({ ...filter, ...change });

  const searchAll = async () => {
    const text = filter.text.trim();
    if (!text) return;
    const mine = ++latest.current;
    setSearching(true);
    const said = new Set<number>();
    for await (const ids of saying(run, text)) {
      if (mine !== latest.current) return;
      for (const id of ids) said.add(id);
    }
    setSearching(false);
    onFilter({ ...filter, said });
  };
  const range = (name: string, from: keyof Filter, to: keyof Filter, step: string) => (
    <span class="range" role="group" aria-label={name}>
      <span class="muted">{name}</span>
      {[from, to].map((key, at) => (
        <input
          key={key}
          type="number"
          step={step}
          aria-label={`${name} ${at ? "at most" : "at least"}`}
          placeholder={at ? "max" : "min"}
          value={filter[key] as string}
          onInput={(event) => set({ [key]: event.currentTarget.value })}
        />
      ))}
    </span>
  );
  return (
    <div class="filters" role="search">
      <input
        id="search"
        type="search"
        class="wide"
        placeholder="Task, prompt or answer; Enter searches all that was said"
        aria-label="Search"
        value={filter.text}
        onKeyDown={(event) => {
          if (event.key === "Enter") void searchAll();
        }}
        onInput={(event) => {
          latest.current++;
          setSearching(false);
          set({ text: event.currentTarget.value, said: null });
        }}
      />
      <select
        aria-label="Outcome"
        value={filter.outcome}
        onChange={(event) => set({ outcome: event.currentTarget.value })}
      >
        <option value="">Any outcome</option>
        {run.index.outcomes.map((name) => (
          <option key={name} value={name}>
            {words(name)}
          </option>
        ))}
      </select>
      {run.index.tools.length > 0 && (
        <select
          aria-label="Tool"
          value={filter.tool}
          onChange={(event) => set({ tool: event.currentTarget.value })}
        >
          <option value="">Any tool</option>
          {run.index.tools.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      )}
      {range("Reward", "rewardFrom", "rewardTo", "any")}
      {range("Tokens", "tokensFrom", "tokensTo", "1")}
      {range("Step", "stepFrom", "stepTo", "1")}
      <span class="found" role="status">
        {searching ? "searching all that was said…" : props.found}
      </span>
      {!isAll(filter) && (
        <button type="button" class="quiet" onClick={() => onFilter(ALL)}>
          Clear
        </button>
      )}
    </div>
  );
}
