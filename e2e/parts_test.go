//go:build e2e

package e2e

import (
	"testing"
	"time"

	"remuda/internal/testkit/long"
)

// part is one step of a test whose cluster is set up once.
type part[T any] struct {
	name string
	test func(*testing.T, T)
}

// inTurn runs the parts on one cluster until one of them fails: those after it would find a
// cluster in an unknown state. use sets the test that the cluster reports to from then on.
func inTurn[T any](t *testing.T, on T, use func(*testing.T), parts []part[T]) {
	t.Helper()
	for _, p := range parts {
		begin := time.Now()
		ok := t.Run(p.name, func(t *testing.T) {
			use(t)
			p.test(t, on)
		})
		t.Logf("%-60s %6.1f s", p.name, time.Since(begin).Seconds())
		if !ok {
			break
		}
	}
	use(t)
}

// use sets the test that the cluster reports to.
func (f *fleet) use(t *testing.T) { f.t, f.dev.t = t, t }

// outage is how long a part of the control plane is away: longer than every timeout that
// notices it, which the long form has as in production.
func outage() time.Duration { return time.Duration(long.Pick(8, 60)) * time.Second }
