package upstream

import (
	"slices"
	"sync"
	"time"
)

// idle are the connections that no request uses. Of one address the one used last is
// taken first, so that those that are too many grow old.
type idle struct {
	keep time.Duration
	max  int

	mu sync.Mutex // guards what follows, and since of the connections here
	// kept are the connections of each address, the oldest first.
	kept map[string][]*conn
	// sweeper closes the old ones; it runs while there are any.
	sweeper *time.Timer
	running bool
}

// sweepEvery is how often kept connections are looked at: one that the engine has closed
// holds a descriptor until then.
const sweepEvery = time.Second

// get takes a connection that can be used, nil if there is none.
func (i *idle) get(addr string) *conn {
	for {
		i.mu.Lock()
		list := i.kept[addr]
		if len(list) == 0 {
			i.mu.Unlock()
			return nil
		}
		c := list[len(list)-1]
		list[len(list)-1] = nil
		i.set(addr, list[:len(list)-1])
		old := time.Since(c.since) > i.keep
		i.mu.Unlock()
		if !old && c.quiet() {
			return c
		}
		c.close()
	}
}

// set is the list of an address from now on. mu is held.
func (i *idle) set(addr string, list []*conn) {
	if len(list) == 0 && cap(list) > 64 {
		delete(i.kept, addr)
		return
	}
	i.kept[addr] = list
}

// put keeps a connection, or closes it where there are enough.
func (i *idle) put(c *conn) {
	i.mu.Lock()
	if i.keep <= 0 || len(i.kept[c.addr]) >= i.max {
		i.mu.Unlock()
		c.close()
		return
	}
	if i.kept == nil {
		i.kept = map[string][]*conn{}
	}
	c.since = time.Now()
	i.kept[c.addr] = append(i.kept[c.addr], c)
	if !i.running {
		i.running = true
		if i.sweeper == nil {
			i.sweeper = time.AfterFunc(i.every(), i.sweep)
		} else {
			i.sweeper.Reset(i.every())
		}
	}
	i.mu.Unlock()
}

func (i *idle) every() time.Duration { return max(min(sweepEvery, i.keep/2), time.Millisecond) }

// sweep closes connections that are old or that the engine has closed. It looks at them
// without holding mu: whoever is taken meanwhile has another time then.
func (i *idle) sweep() {
	type seen struct {
		c     *conn
		since time.Time
	}
	var all []seen
	i.mu.Lock()
	for _, list := range i.kept {
		for _, c := range list {
			all = append(all, seen{c, c.since})
		}
	}
	i.mu.Unlock()
	dead := map[*conn]time.Time{}
	for _, s := range all {
		if time.Since(s.since) > i.keep || !s.c.quiet() {
			dead[s.c] = s.since
		}
	}
	var gone []*conn
	i.mu.Lock()
	left := 0
	for addr, list := range i.kept {
		list = slices.DeleteFunc(list, func(c *conn) bool {
			since, ok := dead[c]
			ok = ok && since.Equal(c.since)
			if ok {
				gone = append(gone, c)
			}
			return ok
		})
		if left += len(list); len(list) == 0 {
			delete(i.kept, addr)
			continue
		}
		i.kept[addr] = list
	}
	if i.running = left > 0; i.running {
		i.sweeper.Reset(i.every())
	}
	i.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}

// closeAll closes what is kept.
func (i *idle) closeAll() {
	i.mu.Lock()
	kept := i.kept
	i.kept, i.running = nil, false
	if i.sweeper != nil {
		i.sweeper.Stop()
	}
	i.mu.Unlock()
	for _, list := range kept {
		for _, c := range list {
			c.close()
		}
	}
}
