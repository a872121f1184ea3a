#!/bin/sh
# The controller and the gateway run as this user, who owns the controller's data.
set -e
if ! getent group remuda >/dev/null; then
	groupadd --system remuda
fi
if ! getent passwd remuda >/dev/null; then
	useradd --system --gid remuda --home-dir /var/lib/remuda --no-create-home --shell /usr/sbin/nologin remuda
fi
