#!/bin/sh
# Nothing is started or restarted: whoever upgrades decides in which order.
set -e
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload || true
fi
