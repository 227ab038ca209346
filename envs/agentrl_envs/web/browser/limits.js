// Runs in a page's own world before its scripts: a request's body, an address and the history have
// limits, past which the page gets an error. The browser spends seconds on larger ones, for all of
// its pages; relay.py bounds whatever gets past this.
(() => {
  "use strict";
  const MOST_BYTES = 2 ** 20;
  const MOST_ADDRESS = 2 ** 16;
  const MOST_ENTRIES = 1000;
  const refuse = (what) => { throw new RangeError(`${what} is over the limit of this browser`); };

  function sizeOf(body) {
    if (typeof body === "string") return body.length;
    if (body instanceof FormData) {
      let size = 0;
      for (const [name, value] of body) size += name.length + sizeOf(value);
      return size;
    }
    return body?.byteLength ?? body?.size ?? 0;
  }

  function check(body) {
    if (sizeOf(body) > MOST_BYTES) refuse("the body of a request");
  }

  function before(owner, name, look) {
    const native = owner[name];
    owner[name] = { [name](...given) {
      look(...given);
      return native.apply(this, given);
    } }[name];
  }

  before(XMLHttpRequest.prototype, "send", check);
  before(Navigator.prototype, "sendBeacon", (url, body) => check(body));
  const { fetch } = window;
  window.fetch = async function (input, options) {
    check(options?.body);
    return fetch.call(this, input, options);
  };
  window.Request = new Proxy(Request, {
    construct(target, given, made) {
      check(given[1]?.body);
      return Reflect.construct(target, given, made);
    },
  });
  let entries = 0;
  for (const name of ["pushState", "replaceState"]) {
    before(History.prototype, name, (state, title, url) => {
      entries += 1;
      if (entries > MOST_ENTRIES) refuse("the history of a page");
      if (String(url ?? "").length > MOST_ADDRESS) refuse("an address");
    });
  }
})();
