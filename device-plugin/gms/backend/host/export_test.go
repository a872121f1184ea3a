package host

import "time"

// OnlyEvents has backends go by what inotify tells alone. It is called before there are any.
func OnlyEvents() { retryMax = 24 * time.Hour }

// Blind has b do without inotify, as on a machine that has no instance left.
func Blind(b *Backend) {
	h := b.orphans
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started = true
	h.watcher.Go(h.runBlind)
}
