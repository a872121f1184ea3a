package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Held is a variant that had no place for another replica, or whose replicas all failed.
type Held struct {
	Variant string `json:"variant"`
	// Left is for how long it is not chosen yet, in nanoseconds of time that was watched.
	Left time.Duration `json:"left_ns"`
	Why  string        `json:"why"`
}

// Bounds of what is remembered of one.
const (
	maxHeld    = 1000
	maxHeldWhy = 200
)

// defaultUnplaceableHold is long enough for a replica that failed to be tried again, and to
// fail again, and short beside the hours for which a wrong variant is paid.
const defaultUnplaceableHold = 2 * time.Minute

// holdDown keeps variants from growing for Options.UnplaceableHold after they had no place,
// so that one whose place comes and goes does not make the policy go to and fro between
// variants. Where no other one has a place they are not held: any place is better than none.
// It changes the snapshot's variants, which must be the call's own.
func (c *Call) holdDown(s *State, elapsed time.Duration) {
	was := make(map[string]Held, len(s.Held))
	for _, h := range s.Held {
		was[h.Variant] = h
	}
	held, other := map[string]Held{}, false
	for _, v := range c.Snapshot.Variants {
		h := was[v.Variant]
		h.Left = min(h.Left, c.Options.UnplaceableHold) - elapsed
		if v.Unplaceable {
			h = Held{Variant: v.Variant, Left: c.Options.UnplaceableHold, Why: short(v.Why)}
		}
		if h.Left > 0 && len(held) < maxHeld {
			held[v.Variant] = h
		}
		other = other || !v.Unplaceable && h.Left <= 0
	}
	s.Held = nil
	for _, name := range slices.Sorted(maps.Keys(held)) {
		s.Held = append(s.Held, held[name])
	}
	for i := range c.Snapshot.Variants {
		v := &c.Snapshot.Variants[i]
		if h, no := held[v.Variant]; no && other && !v.Unplaceable {
			v.Unplaceable = true
			v.Why = fmt.Sprintf("not used for another %s because it could not be placed: %s", h.Left.Round(time.Second), h.Why)
		}
	}
}

// short cuts a reason on a rune's border.
func short(why string) string {
	if len(why) > maxHeldWhy {
		why = why[:maxHeldWhy]
	}
	return strings.ToValidUTF8(why, "")
}

// prepared is the call as the rules see it, with a state of its own, and how much time has
// passed since the last decision.
func (c *Call) prepared() (*Call, State, time.Duration) {
	d := *c
	d.Snapshot.Variants = slices.Clone(c.Snapshot.Variants)
	s := c.State.clone()
	elapsed := c.pass(&s)
	d.holdDown(&s, elapsed)
	return &d, s, elapsed
}

// validateHeld says what of Held cannot be.
func (s *State) validateHeld() (errs []error) {
	if len(s.Held) > maxHeld {
		errs = append(errs, fmt.Errorf("held has %d variants: must be at most %d", len(s.Held), maxHeld))
	}
	for i, h := range s.Held {
		if h.Left < 0 || i > 0 && h.Variant <= s.Held[i-1].Variant {
			errs = append(errs, fmt.Errorf("held[%d] is %q with %d ns: must be 0 or more, and the variants unique and sorted by name", i, h.Variant, h.Left))
		}
	}
	return errs
}
