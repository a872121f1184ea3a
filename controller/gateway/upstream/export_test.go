package upstream

// Inline is the longest request that is written before an answer is looked for.
const Inline = inline

// Kept returns how many connections are kept, and how many of those nothing has happened on.
func Kept(t *Transport) (all, quiet int) {
	t.idle.mu.Lock()
	defer t.idle.mu.Unlock()
	for _, list := range t.idle.kept {
		for _, c := range list {
			all++
			if c.quiet() {
				quiet++
			}
		}
	}
	return all, quiet
}

// Lists returns how many addresses there are lists of connections for.
func Lists(t *Transport) int {
	t.idle.mu.Lock()
	defer t.idle.mu.Unlock()
	return len(t.idle.kept)
}

// Sweep looks at the kept connections now.
func Sweep(t *Transport) { t.idle.sweep() }
