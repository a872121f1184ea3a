//go:build e2e

package e2e

import "testing"

// part is one step of a test whose cluster is set up once.
type part[T any] struct {
	name string
	test func(*testing.T, T)
}

// inTurn runs the parts on one cluster until one of them fails: those after it would find a
// cluster that nobody knows. use says whose test the cluster serves from then on.
func inTurn[T any](t *testing.T, on T, use func(*testing.T), parts []part[T]) {
	t.Helper()
	for _, p := range parts {
		if !t.Run(p.name, func(t *testing.T) {
			use(t)
			p.test(t, on)
		}) {
			break
		}
	}
	use(t)
}

// use says whose test the cluster serves.
func (f *fleet) use(t *testing.T) { f.t = t }
