"""Which Chromium, and how it is asked to run."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError

INSTALL = "apt-get install chromium-headless-shell fonts-liberation, or playwright install chromium"

# Each time the headless shell first: without windows, tabs and extensions it opens a page in half
# the time of a whole browser.
_PLACES = (
    *("/usr/lib/chromium/chromium-headless-shell", "/usr/lib/chromium/chromium"),
    "/usr/lib/chromium-browser/chromium-browser",
)
_PLAYWRIGHTS = ("chromium_headless_shell-*/*/*shell", "chromium-*/chrome-linux*/chrome")
_NAMES = (
    *("chrome-headless-shell", "google-chrome-stable", "google-chrome", "chromium"),
    "chromium-browser",
)

_FEATURES_OFF = (
    # Two pages of the browser's own for every window, at 170 MB each.
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "AimEnabled"),
    # Frames of other sites would be targets of their own, past our interception.
    *("IsolateOrigins", "site-per-process"),
    # A page that comes back from the cache would not ask for itself.
    "BackForwardCache",
    *("AutofillServerCommunication", "CertificateTransparencyComponentUpdater", "HttpsUpgrades"),
    *("HttpsFirstBalancedModeAutoEnable", "MediaRouter", "NetworkTimeServiceQuerying"),
    *("OptimizationHints", "PaintHolding", "PreconnectToSearch", "PreloadTopChromeWebUI"),
    *("Translate", "DestroyProfileOnBrowserClose", "ThirdPartyStoragePartitioning"),
)

_FLAGS = (
    *("--headless", "--remote-debugging-pipe", "--no-startup-window", "--no-first-run"),
    *("--disable-gpu", "--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb"),
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,"
    "primaryPointerType=4,availablePointerTypes=4",
    # A page runs at full speed, seen or not.
    *("--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows"),
    *("--disable-renderer-backgrounding", "--disable-back-forward-cache"),
    *("--disable-hang-monitor", "--disable-ipc-flooding-protection", "--allow-pre-commit-input"),
    # Nothing but pages.
    *("--disable-background-networking", "--disable-breakpad", "--disable-component-update"),
    *("--disable-component-extensions-with-background-pages", "--disable-default-apps"),
    *("--disable-extensions", "--disable-field-trial-config", "--disable-sync", "--disable-pings"),
    *("--disable-search-engine-choice-screen", "--metrics-recording-only"),
    *("--no-default-browser-check", "--no-service-autorun", "--password-store=basic"),
    *("--deny-permission-prompts", "--disable-notifications", "--disable-print-preview"),
    "--disable-site-isolation-trials",
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--enable-features=CDPScreenshotNewSurface",
)

_NO_NETWORK = (
    # What is not answered by us goes to a proxy that does not exist: beacons, prefetches, sockets,
    # whatever a redirect leads to. Loopback too.
    *("--proxy-server=http://nowhere.invalid:1", "--proxy-bypass-list=<-loopback>"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-quic", "--dns-prefetch-disable"),
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)


def flags(*, profile: str, own_sandbox: bool) -> list[str]:
    """Return Chromium's arguments; `own_sandbox` confines its renderers beyond what we do."""
    arguments = [*_FLAGS, *_NO_NETWORK, f"--user-data-dir={profile}"]
    return arguments if own_sandbox else [*arguments, "--no-sandbox"]


def find(executable: str = "") -> str:
    """Return the path of Chromium's binary. `ConfigError` where there is none."""
    if executable:
        if os.access(executable, os.X_OK):
            return executable
        raise ConfigError(f"there is no program {executable!r} to use as the browser; {INSTALL}")
    for path in _candidates():
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise ConfigError(f"no Chromium was found on this machine; {INSTALL}")


def _candidates() -> Iterator[str]:
    yield from _PLACES
    default = Path.home() / ".cache" / "ms-playwright"
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", default))
    for pattern in _PLAYWRIGHTS:
        yield from sorted((str(path) for path in folder.glob(pattern)), reverse=True)
    yield from filter(None, map(shutil.which, _NAMES))
