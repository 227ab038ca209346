/** What was said: messages, tool calls, pictures. */

import type { Said, Story } from "./data";
import { seconds, signed } from "./format";

export function Text({ text }: { text: string }) {
  return text ? <div class="text">{text}</div> : null;
}

export function Pictures({ names, story }: { names?: string[]; story: Story }) {
  if (!names?.length) return null;
  return (
    <div class="pictures">
      {names.map((name, at) => {
        const data = story.pictures[name] ?? "left out";
        return data.startsWith("data:") ? (
          <img key={at} src={data} alt={`picture ${at + 1} of this message`} loading="lazy" />
        ) : (
          <p key={at} class="muted">A picture is {data}.</p>
        );
      })}
    </div>
  );
}

export function Messages({ said, story, same = 0 }: { said: Said[]; story: Story; same?: number }) {
  return (
    <ol class="messages">
      {said.map((message, at) => (
        <>
          {same > 0 && at === same && (
            <li key="parts" class="parts" role="separator">the same up to here</li>
          )}
          <Message key={at} message={message} story={story} isSame={at < same} />
        </>
      ))}
    </ol>
  );
}

function Message({ message, story, isSame }: { message: Said; story: Story; isSame: boolean }) {
  return (
    <li class={`message ${message.role} ${isSame ? "same" : ""}`}>
      <header>
        <span class="role">{message.role === "tool" && message.name ? message.name : message.role}</span>
        <span class="muted">turn {message.turn}</span>
        {message.reward !== undefined && message.reward !== 0 && <span>reward {signed(message.reward)}</span>}
        {message.s !== undefined && message.role === "tool" && <span class="muted">at {seconds(message.s)}</span>}
      </header>
      <Text text={message.text} />
      {message.calls?.map((call, at) => (
        <div class="call" key={at}>
          <span class="call-name">{call.name}</span>
          {Object.entries(call.arguments).map(([name, value]) => (
            <div class="argument" key={name}>
              <span class="muted">{name}</span>
              <pre class="text">{value}</pre>
            </div>
          ))}
        </div>
      ))}
      {message.malformed?.map((error, at) => (
        <p class="bad" key={at}>A call could not be read: {error}</p>
      ))}
      <Pictures names={message.pictures} story={story} />
      {!message.text && !message.calls?.length && !message.pictures?.length && !message.malformed?.length && (
        <p class="muted">nothing</p>
      )}
    </li>
  );
}
