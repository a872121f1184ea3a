package nomad_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/testkit/nomadtest"
)

func TestRegister(t *testing.T) {
	c, s := newClient(t)
	ctx := t.Context()
	job := rendered(t)
	id := *job.ID

	first, err := c.Register(ctx, job, 0)
	require.NoError(t, err)
	require.NotZero(t, first.Index)
	require.False(t, first.Already)
	// Again, as after an answer that was lost.
	again, err := c.Register(ctx, job, 0)
	require.NoError(t, err)
	require.Equal(t, nomad.Registration{Index: first.Index, Already: true}, again)

	same, err := c.Register(ctx, job, first.Index)
	require.NoError(t, err)
	require.Equal(t, nomad.Registration{Index: first.Index, Already: true}, same, "not the index that Nomad answers with")

	changed := rendered(t)
	changed.Meta[nomad.MetaHash] = "def"
	_, err = c.Register(ctx, changed, 0)
	var conflict *nomad.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.ErrorIs(t, err, nomad.ErrConflict)
	require.Equal(t, first.Index, conflict.Have)
	second, err := c.Register(ctx, changed, first.Index)
	require.NoError(t, err)
	require.Greater(t, second.Index, first.Index)
	_, err = c.Register(ctx, job, first.Index)
	require.ErrorIs(t, err, nomad.ErrConflict, "a stale index")
	require.Equal(t, "def", s.Job(id).Meta[nomad.MetaHash], "nothing was written")

	s.EditJob(id, func(j *api.Job) { j.Priority = new(99) })
	_, err = c.Register(ctx, changed, second.Index)
	require.ErrorContains(t, err, "it was changed outside remuda")
	s.EditJob(id, func(j *api.Job) { j.Priority, j.Stop = nil, new(true) })
	_, err = c.Register(ctx, changed, second.Index)
	require.ErrorContains(t, err, "stopped outside remuda")
	back, err := c.Register(ctx, changed, *s.Job(id).JobModifyIndex)
	require.NoError(t, err)
	require.False(t, s.Job(id).Stop != nil && *s.Job(id).Stop)

	require.NoError(t, stop(ctx, c, name, *s.Job(nomad.JobID(name)).JobModifyIndex, true))
	_, err = c.Register(ctx, changed, back.Index)
	require.ErrorIs(t, err, nomad.ErrConflict)
	require.ErrorContains(t, err, "it no longer exists")

	alien := rendered(t)
	alien.Meta[nomad.MetaReplica] = "other:v:1"
	_, err = c.Register(ctx, alien, 0)
	require.ErrorIs(t, err, nomad.ErrRefused, "only what Render made")
}

func TestRegisterOverAStrangersJob(t *testing.T) {
	c, s := newClient(t)
	job := rendered(t)
	_, err := c.Register(t.Context(), job, 0)
	require.NoError(t, err)
	s.EditJob(*job.ID, func(j *api.Job) { j.Meta = nil })
	_, err = c.Register(t.Context(), job, 0)
	require.ErrorIs(t, err, nomad.ErrConflict)
	require.ErrorContains(t, err, "is not a job of a replica")
	err = stop(t.Context(), c, name, *s.Job(*job.ID).JobModifyIndex, true)
	require.ErrorIs(t, err, nomad.ErrConflict)
	require.NotNil(t, s.Job(*job.ID), "it is left alone")
}

func TestRegisterWhoseAnswerIsLost(t *testing.T) {
	c, s := newClient(t)
	job := rendered(t)
	s.Break(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.URL.Path == "/v1/jobs" {
			w = &deaf{w}
			s.Config.Handler.ServeHTTP(w, mark(r))
			panic(http.ErrAbortHandler)
		}
		return false
	})
	_, err := c.Register(t.Context(), job, 0)
	require.ErrorIs(t, err, nomad.ErrUnreachable)
	require.NotNil(t, s.Job(*job.ID))
	s.Break(nil)
	got, err := c.Register(t.Context(), job, 0)
	require.NoError(t, err)
	require.True(t, got.Already)
	require.Equal(t, *s.Job(*job.ID).JobModifyIndex, got.Index)
}

// mark turns a request into one that is served as it is.
func mark(r *http.Request) *http.Request {
	r = r.Clone(r.Context())
	r.Method = http.MethodPost
	return r
}

// deaf drops an answer.
type deaf struct{ http.ResponseWriter }

func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
func (d *deaf) WriteHeader(int)             {}

func TestStop(t *testing.T) {
	c, s := newClient(t)
	ctx := t.Context()
	require.NoError(t, stop(ctx, c, name, 7, false), "one that is not there is stopped")
	reg, err := c.Register(ctx, rendered(t), 0)
	require.NoError(t, err)
	id := nomad.JobID(name)
	require.ErrorIs(t, stop(ctx, c, name, reg.Index-1, false), nomad.ErrConflict, "it was registered since")
	require.Nil(t, s.Job(id).Stop)
	require.NoError(t, stop(ctx, c, name, reg.Index, false))
	require.True(t, *s.Job(id).Stop)
	index := *s.Job(id).JobModifyIndex
	require.NoError(t, stop(ctx, c, name, reg.Index, false))
	require.Equal(t, index, *s.Job(id).JobModifyIndex)
	require.Equal(t, 1, count(s.Served(), "DELETE "), "stopped once only")
	require.ErrorIs(t, stop(ctx, c, name, reg.Index, true), nomad.ErrConflict)
	require.NotNil(t, s.Job(id))
	require.NoError(t, stop(ctx, c, name, index, true))
	require.Nil(t, s.Job(id))
	require.NoError(t, stop(ctx, c, name, index, true))
}

func TestWriteFaults(t *testing.T) {
	t.Parallel()
	for what, broken := range faultyAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s := newFaultyClient(t, what, 200*time.Millisecond)
			s.Break(broken)
			_, err := c.Register(t.Context(), rendered(t), 0)
			require.ErrorIs(t, err, nomad.ErrUnreachable)
			require.ErrorIs(t, stop(t.Context(), c, name, 0, false), nomad.ErrUnreachable)
			_, err = c.Observe(t.Context())
			require.ErrorIs(t, err, nomad.ErrUnreachable)
			_, err = c.Plan(t.Context(), rendered(t))
			require.ErrorIs(t, err, nomad.ErrUnreachable)
			_, err = c.Validate(t.Context(), rendered(t))
			require.ErrorIs(t, err, nomad.ErrUnreachable)
			_, err = c.Why(t.Context(), name)
			require.ErrorIs(t, err, nomad.ErrUnreachable)
		})
	}
	for _, tc := range []struct {
		name string
		code int
		body string
		want error
	}{
		{"validation", 500, "1 error occurred:\n\t* Task group replica validation failed", nomad.ErrRefused},
		{"no token", 403, "Permission denied", nomad.ErrDenied},
		{"a token that is not known here yet", 403, "ACL token not found", nomad.ErrDenied},
		{"bad request", 400, "Job must be specified", nomad.ErrRefused},
		{"too many", 429, "too many connections", nomad.ErrUnreachable},
		{"no leader", 500, "No cluster leader", nomad.ErrUnreachable},
		{"raft", 500, "leadership lost while committing log", nomad.ErrUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, s := newClient(t)
			s.Break(func(w http.ResponseWriter, _ *http.Request) bool {
				http.Error(w, tc.body, tc.code)
				return true
			})
			_, err := c.Register(t.Context(), rendered(t), 0)
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, tc.body)
		})
	}
}

func TestPlanAndWhy(t *testing.T) {
	c, s := newClient(t)
	job := rendered(t)
	plan, err := c.Plan(t.Context(), job)
	require.NoError(t, err)
	require.True(t, plan.Changed)
	require.Zero(t, plan.Index)
	reg, err := c.Register(t.Context(), job, 0)
	require.NoError(t, err)
	plan, err = c.Plan(t.Context(), job)
	require.NoError(t, err)
	require.False(t, plan.Changed)
	require.Equal(t, reg.Index, plan.Index)

	why, err := c.Why(t.Context(), name)
	require.NoError(t, err)
	require.Empty(t, why)
	s.SetEvaluations(*job.ID,
		&api.Evaluation{ID: "b", CreateIndex: 9, FailedTGAllocs: map[string]*api.AllocationMetric{"replica": {
			NodesEvaluated: 3, ConstraintFiltered: map[string]int{"missing devices": 2}, DimensionExhausted: map[string]int{"memory": 1},
		}}},
		&api.Evaluation{ID: "a", CreateIndex: 3})
	why, err = c.Why(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, `group "replica": 1 nodes do not have enough memory; group "replica": 2 nodes lack missing devices`, why)
}

func allocation(id string, created int64) *api.AllocationListStub {
	return &api.AllocationListStub{
		ID: id, JobID: nomad.JobID(name), NodeID: "node-1", NodeName: "n1", DesiredStatus: "run", ClientStatus: "running", CreateTime: created, ModifyTime: created + 1,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
			"primary": {Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"GPU-1#0"}}}},
			"shadow":  {Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"GPU-1#1"}}}},
			"lockd":   {},
		}},
		TaskStates: map[string]*api.TaskState{"shadow": {State: "pending"}, "primary": {State: "running", Restarts: 2, StartedAt: time.Unix(5, 0),
			Events: []*api.TaskEvent{{Type: "Received"}, {Type: "Started", DisplayMessage: "Task started by client"}}}},
	}
}

func TestObserve(t *testing.T) {
	c, s := newClient(t)
	job := rendered(t)
	reg, err := c.Register(t.Context(), job, 0)
	require.NoError(t, err)
	s.SetAllocation(allocation("old", 1))
	s.SetAllocation(allocation("new", 2))
	stranger := allocation("stranger", 3)
	stranger.JobID = "web"
	s.SetAllocation(stranger)

	jobs, err := c.Observe(t.Context())
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	got := jobs[0]
	require.Equal(t, name, got.Name)
	require.Equal(t, "abc", got.Hash)
	require.Equal(t, reg.Index, got.Index)
	require.Empty(t, got.Problem)
	require.Equal(t, state.Placement{Node: "node-1", Seats: []string{"GPU-1#0", "GPU-1#1"}, Memory: map[string]int64{"GPU-1": 20 << 30}, HostMemory: 17 << 30}, got.Placement)
	require.Len(t, got.Allocations, 2)
	require.Equal(t, nomad.Allocation{
		ID: "new", Node: "node-1", Desired: "run", Client: "running", Created: time.Unix(0, 2).UTC(),
		Seats: map[string][]string{"primary": {"GPU-1#0"}, "shadow": {"GPU-1#1"}},
		Tasks: []nomad.Task{{Name: "primary", State: "running", Restarts: 2, Started: time.Unix(5, 0).UTC(), Event: "Task started by client"}, {Name: "shadow", State: "pending"}},
	}, got.Allocations[0])

	mine := state.Replica{Name: name, Version: 1, JobIndex: reg.Index, Placement: request().Placement}
	require.Empty(t, got.Drift(mine))
	require.False(t, got.Ended())

	// Somebody moved, edited and stopped it.
	moved := allocation("new", 2)
	moved.NodeID = "node-2"
	s.SetAllocation(moved)
	seats := allocation("old", 1)
	seats.AllocatedResources.Tasks["primary"].Devices[0].DeviceIDs = []string{"GPU-7#0"}
	s.SetAllocation(seats)
	s.EditJob(*job.ID, func(j *api.Job) {
		j.Meta[nomad.MetaNode] = "node-2"
		j.Stop = new(true)
	})
	jobs, err = c.Observe(t.Context())
	require.NoError(t, err)
	drift := strings.Join(jobs[0].Drift(mine), "\n")
	for _, want := range []string{"stopped", "index is", "on GPU-1#0,GPU-1#1 of node node-2, not on GPU-1#0,GPU-1#1 of node node-1",
		"allocation new is on node node-2, not node-1", "allocation old has seat GPU-7#0 for task primary"} {
		require.Contains(t, drift, want)
	}
	require.False(t, jobs[0].Ended(), "its allocations have not ended")
	for _, id := range []string{"old", "new"} {
		a := allocation(id, 1)
		a.ClientStatus = "complete"
		s.SetAllocation(a)
	}
	jobs, err = c.Observe(t.Context())
	require.NoError(t, err)
	require.True(t, jobs[0].Ended())
	lost := allocation("new", 2)
	lost.ClientStatus = "lost"
	s.SetAllocation(lost)
	jobs, err = c.Observe(t.Context())
	require.NoError(t, err)
	require.False(t, jobs[0].Ended(), "what was lost may still run")
}

func TestObserveMetaThatLies(t *testing.T) {
	for _, tc := range []struct{ name, key, value, want string }{
		{"no name", nomad.MetaReplica, "nonsense", "bad replica name"},
		{"another's name", nomad.MetaReplica, "a:b:c", `the job's ID is "meta-llama/Llama:8b:h100:7f3a"`},
		{"no node", nomad.MetaNode, "", "remuda_node is missing"},
		{"no seats", nomad.MetaSeats, "", `remuda_seats has ""`},
		{"bad seats", nomad.MetaSeats, "GPU-1#0,GPU-1", `remuda_seats has "GPU-1"`},
		{"bad memory", nomad.MetaMemory, "-1", `remuda_memory is "-1"`},
		{"bad host memory", nomad.MetaHostMemory, "x", `remuda_host_memory is "x"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, s := newClient(t)
			_, err := c.Register(t.Context(), rendered(t), 0)
			require.NoError(t, err)
			s.EditJob(nomad.JobID(name), func(j *api.Job) { j.Meta[tc.key] = tc.value })
			jobs, err := c.Observe(t.Context())
			require.NoError(t, err)
			require.Len(t, jobs, 1, "it is told, not hidden")
			require.Contains(t, jobs[0].Problem, tc.want)
			require.NotEmpty(t, jobs[0].Drift(state.Replica{Name: name, Version: 1, Placement: request().Placement}))
		})
	}
}

func TestWatchJobs(t *testing.T) {
	t.Parallel()
	for what, broken := range faultyAnswers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, s := newFaultyClient(t, what, 2*time.Second)
			w := newWatched[[]nomad.Job]()
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				w.ended <- c.WatchJobs(ctx, func(l nomad.Listing) {
					if l.Changed {
						w.update(l.Jobs)
					}
				}, w.lostIt)
			}()
			t.Cleanup(func() {
				cancel()
				require.ErrorIs(t, next(t, w.ended, "end of the watch"), context.Canceled)
			})
			until := func(what string, ok func([]nomad.Job) bool) {
				t.Helper()
				for {
					if ok(next(t, w.updates, what)) {
						return
					}
				}
			}
			until("empty list", func(jobs []nomad.Job) bool { return len(jobs) == 0 })
			_, err := c.Register(ctx, rendered(t), 0)
			require.NoError(t, err)
			until("job", func(jobs []nomad.Job) bool { return len(jobs) == 1 })
			s.SetAllocation(allocation("a", 1))
			until("allocation", func(jobs []nomad.Job) bool { return len(jobs[0].Allocations) == 1 })
			s.EditJob(nomad.JobID(name), func(j *api.Job) { j.Stop = new(true) })
			until("stop", func(jobs []nomad.Job) bool { return jobs[0].Stopped })

			s.Break(broken)
			require.ErrorIs(t, next(t, w.lost, "loss"), nomad.ErrUnreachable)
			for len(w.updates) > 0 {
				<-w.updates
			}
			ended := allocation("a", 1)
			ended.ClientStatus = "complete"
			s.SetAllocation(ended)
			s.Break(nil)
			until("news after the outage", func(jobs []nomad.Job) bool { return jobs[0].Ended() })
			s.Restore(2)
			gone := allocation("a", 1)
			gone.ClientStatus = "failed"
			s.SetAllocation(gone)
			until("news of a restored server", func(jobs []nomad.Job) bool { return jobs[0].Allocations[0].Client == "failed" })
		})
	}
}

// watchJobs watches the jobs until the test ends.
func watchJobs(t *testing.T, c *nomad.Client) *watched[nomad.Listing] {
	t.Helper()
	w := newWatched[nomad.Listing]()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { w.ended <- c.WatchJobs(ctx, w.update, w.lostIt) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, next(t, w.ended, "end of the watch"), context.Canceled)
	})
	return w
}

// TestNodeJob: the listing says on which nodes all tasks of the job for every node run.
func TestNodeJob(t *testing.T) {
	t.Parallel()
	c, s := newClient(t)
	w := watchJobs(t, c)
	until := func(what string, want *nomad.NodeJob) {
		t.Helper()
		for !reflect.DeepEqual(next(t, w.updates, what).Node, want) {
		}
	}
	until("a Nomad without it", nil)
	s.PutJob(&api.Job{ID: new("remuda-node"), Name: new("remuda-node"), Type: new("system"), Meta: map[string]string{nomad.MetaNodeJob: "true"}})
	until("the job alone", &nomad.NodeJob{Healthy: map[string]bool{}})
	put := func(group, node, desired string, states ...string) {
		a := &api.AllocationListStub{ID: group + node, JobID: "remuda-node", NodeID: node, TaskGroup: group, DesiredStatus: desired, TaskStates: map[string]*api.TaskState{}}
		for i, state := range states {
			a.TaskStates[fmt.Sprint(i)] = &api.TaskState{State: state}
		}
		s.SetAllocation(a)
	}
	put("lockd", "1", "run", "running")
	put("gms", "1", "run", "running")
	put("lockd", "2", "run")
	until("one node", &nomad.NodeJob{Healthy: map[string]bool{"1": true}})
	put("lockd", "2", "run", "running")
	until("two nodes", &nomad.NodeJob{Healthy: map[string]bool{"1": true, "2": true}})
	put("gms", "2", "run", "pending")
	until("gms is started", &nomad.NodeJob{Healthy: map[string]bool{"1": true}})
	put("lockd", "1", "stop", "dead")
	put("gms", "1", "stop", "dead")
	put("gms", "2", "run", "running")
	until("the first is stopped", &nomad.NodeJob{Healthy: map[string]bool{"2": true}})
	s.EditJob("remuda-node", func(j *api.Job) { j.Stop = new(true) })
	put("lockd", "2", "stop", "dead")
	put("gms", "2", "stop", "dead")
	until("the job is stopped", &nomad.NodeJob{Healthy: map[string]bool{}})
}

// TestListingsShowWhatTheirIndexSays: a list with the index of a write, or a later one, shows the
// write. Where nothing has changed, a list says so, and that it was asked for later.
func TestListingsShowWhatTheirIndexSays(t *testing.T) {
	t.Parallel()
	c, _ := newClient(t)
	ctx, w := t.Context(), watchJobs(t, c)
	from := func(index uint64) nomad.Listing {
		for {
			if l := next(t, w.updates, "a list of a later index"); l.Index >= index {
				return l
			}
		}
	}
	reg, err := c.Register(ctx, rendered(t), 0)
	require.NoError(t, err)
	require.Len(t, from(reg.Index).Jobs, 1)
	written, err := c.Stop(ctx, name, reg.Index, false)
	require.NoError(t, err)
	require.Greater(t, written, reg.Index)
	l := from(written)
	require.True(t, l.Jobs[0].Stopped)
	asked := time.Now()
	for l.Changed || l.Began.Before(asked) {
		l = from(written)
	}
	require.Len(t, l.Jobs, 1)
	written, err = c.Stop(ctx, name, l.Jobs[0].Index, true)
	require.NoError(t, err)
	require.Greater(t, written, l.Index)
	require.Empty(t, from(written).Jobs)
	written, err = c.Stop(ctx, name, reg.Index, true)
	require.NoError(t, err)
	require.Zero(t, written, "nothing had to be written")
}

func TestRateLimit(t *testing.T) {
	s := nomadtest.New(t)
	cfg := config(s)
	cfg.Rate, cfg.Burst = 50, 2
	c := clientOf(t, cfg)
	began := time.Now()
	for range 7 {
		_, err := c.Plan(t.Context(), rendered(t))
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, time.Since(began), 95*time.Millisecond, "five of seven had to wait 20 ms each")
	cfg.Rate = 0.001
	c = clientOf(t, cfg)
	for range 2 {
		_, err := c.Plan(t.Context(), rendered(t))
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Plan(ctx, rendered(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := nomad.New(nomad.Config{Address: "localhost"})
	for _, want := range []string{`address is "localhost"`, "timeout is 0s", "wait is 0s", "settle is 0s", "rate is 0", "burst is 0", "logger"} {
		require.ErrorContains(t, err, want)
	}
}
