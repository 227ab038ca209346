"""The settings of the window manager, the toolkits and the bus: the same for every desktop."""

import os

# A click soon after another one, a menu that opens late and a cursor that blinks would make what is
# seen a matter of time. Two actions are further apart than a double click.
_GTK = """[Settings]
gtk-enable-animations=0
gtk-cursor-blink=0
gtk-double-click-time=150
gtk-menu-popup-delay=0
gtk-theme-name=Adwaita
gtk-icon-theme-name=Adwaita
gtk-font-name=DejaVu Sans 10
gtk-recent-files-enabled=0
gtk-enable-event-sounds=0
gtk-enable-input-feedback-sounds=0
gtk-dialogs-use-header=0
"""
_JWM = """<?xml version="1.0"?>
<JWM>
  <Desktops width="1" height="1"><Background type="solid">#3b6ea5</Background></Desktops>
  <WindowStyle><Font>DejaVu Sans-10</Font></WindowStyle>
  <FocusModel>click</FocusModel>
  <SnapMode distance="0">none</SnapMode>
  <MoveMode>opaque</MoveMode><ResizeMode>opaque</ResizeMode>
  <DoubleClickSpeed>150</DoubleClickSpeed>
  <Key mask="A" key="Tab">nextstacked</Key>
  <Key mask="A" key="F4">close</Key>
  <Mouse context="icon" button="4">none</Mouse>
</JWM>
"""
_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path=/run/desktop/bus</listen>
  <standard_session_servicedirs/>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
  </policy>
</busconfig>
"""
# Icons have no accessibility tree, and the free space and the time of a change are never the same.
_THUNAR = """<?xml version="1.0" encoding="UTF-8"?>
<channel name="thunar" version="1.0">
  <property name="default-view" type="string" value="ThunarDetailsView"/>
  <property name="last-view" type="string" value="ThunarDetailsView"/>
  <property name="last-statusbar-visible" type="bool" value="false"/>
  <property name="last-details-view-visible-columns" type="string"
   value="THUNAR_COLUMN_NAME,THUNAR_COLUMN_SIZE,THUNAR_COLUMN_TYPE"/>
  <property name="misc-text-beside-icons" type="bool" value="false"/>
</channel>
"""
FILES = {
    "etc/xfce4/xfconf/xfce-perchannel-xml/thunar.xml": _THUNAR,
    "etc/group": "user:x:1000:\n",
    "etc/gtk-3.0/settings.ini": _GTK,
    "etc/machine-id": "0" * 31 + "1\n",
    "etc/passwd": "user:x:1000:1000:user:/home/user:/bin/bash\n",
    "bus.conf": _BUS,
    "jwmrc": _JWM,
}


def write(folder: str) -> None:
    """Write the settings below a directory."""
    for name, text in FILES.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
