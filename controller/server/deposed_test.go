package server_test

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/server"
	"remuda/controller/state"
)

// deposable is a server that can be deposed without its knowledge: it then has an old state,
// and believes that it leads, until it needs a majority. It leads again afterwards, with the
// state that its successor made meanwhile.
type deposable struct {
	server.Raft
	old atomic.Pointer[state.Store]
	// verified counts how often a majority was asked without a command.
	verified atomic.Int64
	// applied is called after each command that was committed.
	applied func()
}

func (d *deposable) wrap(c *server.Config) { d.Raft, c.Raft = c.Raft, d }

func (d *deposable) depose(old *state.Store) { d.old.Store(old.Fork()) }

func (d *deposable) learn() error {
	if d.old.Swap(nil) != nil {
		return &raft.NotLeaderError{}
	}
	return nil
}

func (d *deposable) Store() *state.Store {
	if old := d.old.Load(); old != nil {
		return old
	}
	return d.Raft.Store()
}

func (d *deposable) Apply(ctx context.Context, c state.Command) (state.Result, error) {
	if err := d.learn(); err != nil {
		return state.Result{}, err
	}
	res, err := d.Raft.Apply(ctx, c)
	if err == nil && d.applied != nil {
		d.applied()
	}
	return res, err
}

func (d *deposable) VerifyTerm(ctx context.Context, term uint64) error {
	d.verified.Add(1)
	if err := d.learn(); err != nil {
		return err
	}
	return d.Raft.VerifyTerm(ctx, term)
}

func (d *deposable) Read(ctx context.Context, c raft.Consistency) (*state.View, error) {
	if c == raft.Verified {
		d.verified.Add(1)
		if err := d.learn(); err != nil {
			return nil, err
		}
	}
	return d.Raft.Read(ctx, c)
}

// TestADeposedLeaderRefusesNothing sends every request to a server that knows nothing but the
// tokens: what it refuses of its own state is answered by the leader that there is.
func TestADeposedLeaderRefusesNothing(t *testing.T) {
	d := &deposable{}
	m, secrets := bootstrapped(t, d.wrap)
	old := m.store.Fork()
	requests := goodRequests(t, m)
	for _, r := range server.Routes() {
		key := r.Method + " " + r.Pattern
		if key == "PUT /v1/operator/snapshot" {
			continue // A stream is not sent twice.
		}
		d.depose(old)
		g := requests[key]
		resp, body := m.raw(r.Method, g.path, secrets["operator"], g.body)
		require.Equal(t, cmp.Or(g.status, http.StatusOK), resp.StatusCode, "%s: %s", key, body)
		if r.Writes {
			require.Nil(t, d.old.Load(), "%s was answered from the old state", key)
		}
	}
}

// TestADeposedLeaderChangesNothingForADeletedToken: the old state knows the token, and all that
// the request is about.
func TestADeposedLeaderChangesNothingForADeletedToken(t *testing.T) {
	d := &deposable{}
	m, _ := bootstrapped(t, d.wrap)
	requests := goodRequests(t, m)
	deleted := token(t, m.client, "operator")
	old := m.store.Fork()
	require.NoError(t, m.client.DeleteToken(t.Context(), deleted.Accessor))
	before := m.store.View().Index()
	for _, r := range server.Routes() {
		if !r.Writes || r.Roles == nil {
			continue
		}
		key := r.Method + " " + r.Pattern
		d.depose(old)
		resp, body := m.raw(r.Method, requests[key].path, deleted.SecretID, requests[key].body)
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "%s: %s", key, body)
		require.Equal(t, before, m.store.View().Index(), key)
	}
}

// TestADeposedLeaderFindsNothingUnchanged: what the old state has already, or has no more, must
// be done by the leader that there is.
func TestADeposedLeaderFindsNothingUnchanged(t *testing.T) {
	t.Parallel()
	d := &deposable{}
	m := cluster(t, 1, settings{server: d.wrap})[0]
	none := m.store.Fork()
	m.applied("m")
	applied := m.store.Fork()
	require.NoError(t, m.client.DeleteModel(t.Context(), "m", nil))

	d.depose(applied)
	plan, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m")), DryRun: true})
	require.NoError(t, err)
	require.True(t, plan.Models[0].New, "the old state has this model")
	d.depose(applied)
	done, err := m.client.ApplyModels(t.Context(), api.ApplyRequest{Files: modelFile(file("m"))})
	require.NoError(t, err)
	require.True(t, done.Models[0].New)
	require.NotNil(t, m.store.View().Model(nil, "m"))

	_, err = m.client.SetDedicated(t.Context(), api.DedicatedRequest{Models: map[string]int{"m": 1}})
	require.NoError(t, err)
	d.depose(none)
	cleared, err := m.client.ClearDedicated(t.Context())
	require.NoError(t, err)
	require.Empty(t, cleared.Models)
	require.Empty(t, m.store.View().Dedicated(nil).Models)
}

// TestAWriteAsksAMajorityOnce: a command that is committed proves that the server led, and a
// server that is deposed right after answers for it. A second try would find the switch set.
func TestAWriteAsksAMajorityOnce(t *testing.T) {
	t.Parallel()
	d := &deposable{}
	m := cluster(t, 1, settings{server: d.wrap})[0]
	d.applied = func() { d.depose(m.store) }
	_, err := m.client.SetSwitch(t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: "1", CAS: ptr(uint64(0))})
	require.NoError(t, err)
	require.Zero(t, d.verified.Load())
}
