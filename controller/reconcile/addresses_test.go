package reconcile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/raft"
	"remuda/controller/reconcile"
	"remuda/controller/state"
)

// at is an allocation whose engine has this address.
func at(id, address string) nomad.Allocation {
	a := allocation("n")
	a.ID, a.Ports = id, map[string]string{"engine": address, "shim": "10.0.0.1:9"}
	return a
}

// TestAddressesFollowNomad: gateways learn where an engine is before it serves, and where it is
// now after Nomad has made another allocation.
func TestAddressesFollowNomad(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.place("1")
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:1"))
		require.Equal(t, w.nomad.jobs["m:v:1"].Generation, w.replica("m:v:1").Generation)
		require.Empty(t, w.replica("m:v:1").Addresses, "Nomad has no allocation yet")

		w.nomad.allocate("m:v:1", at("a", "10.0.0.1:1"))
		w.rest()
		require.Equal(t, "starting", w.stage("m:v:1"))
		require.Equal(t, []string{"10.0.0.1:1"}, w.replica("m:v:1").Addresses)

		w.consul.serve(engine("1"))
		w.rest()
		require.Equal(t, "serving", w.stage("m:v:1"))
		writes := w.raft.writes()
		w.pass(aWhile)
		require.Equal(t, writes, w.raft.writes(), "nothing is written again")

		ended := at("a", "10.0.0.1:1")
		ended.Client = "failed"
		w.nomad.allocate("m:v:1", at("b", "10.0.0.1:2"), ended)
		w.rest()
		require.Equal(t, []string{"10.0.0.1:2"}, w.replica("m:v:1").Addresses)

		// A Nomad that is out of reach, or a job that it does not list, proves nothing.
		w.nomad.set(func() { w.nomad.down = true })
		w.rest()
		require.Equal(t, []string{"10.0.0.1:2"}, w.replica("m:v:1").Addresses)
	})
}

// TestAddressIsWrittenBeforeServing also where both are seen at once, as by a new leader.
func TestAddressIsWrittenBeforeServing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.place("1")
		w.rest()
		w.raft.depose()
		w.rest()
		w.nomad.allocate("m:v:1", at("a", "10.0.0.1:1"))
		w.consul.serve(engine("1"))
		w.raft.elect()
		w.rest()
		require.Equal(t, "serving", w.stage("m:v:1"))
		order := ""
		for _, c := range w.raft.commands() {
			switch c := c.(type) {
			case *state.SetAddresses:
				if len(c.Replicas[0].Addresses) > 0 {
					order += "addresses "
				}
			case *state.Plan:
				for _, m := range c.Move {
					order += string(m.Event) + " "
				}
			}
		}
		require.Equal(t, "addresses serving ", order)
	})
}

// TestAddressesWaitForTheFeatureLevel: plans go on while a server of an earlier version is there.
func TestAddressesWaitForTheFeatureLevel(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.raft.set(func() {
			w.raft.onApply = func(c state.Command) (bool, error) {
				if _, ok := c.(*state.SetAddresses); ok {
					return false, raft.ErrFeatureLevel
				}
				return true, nil
			}
		})
		w.running("1")
		w.nomad.allocate("m:v:1", at("a", "10.0.0.1:1"))
		w.rest()
		require.Empty(t, w.replica("m:v:1").Addresses)
		w.raft.set(func() { w.raft.onApply = nil })
		w.pass(2 * reconcile.DefaultConfig().RetryMax)
		require.Equal(t, []string{"10.0.0.1:1"}, w.replica("m:v:1").Addresses)
	})
}
