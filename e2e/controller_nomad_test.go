//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/controller/nomad"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/jobs"
)

// follower keeps what a watch has told last.
type follower[T any] struct {
	mu      sync.Mutex
	last    T
	updates int
	losses  int
	current bool
}

func (f *follower[T]) update(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.current = v, true
	f.updates++
}

func (f *follower[T]) lost(error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current = false
	f.losses++
}

func (f *follower[T]) until(t *testing.T, what string, check func(v T) error) T {
	t.Helper()
	var v T
	eventually(t, time.Minute, what, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if v = f.last; !f.current {
			return errors.New("the watch is not up to date")
		}
		return check(v)
	})
	return v
}

// nomadAdapter: the controller's adapter on a real Nomad.
func nomadAdapter(t *testing.T, d *dev) {
	d.pause() // here the test is the controller
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.Wait, cfg.Timeout = d.info.Nomad, 2*time.Second, 3*time.Second
	c, err := nomad.New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	ctx := t.Context()

	// What the plugin publishes is what the controller knows.
	var nodes []state.Node
	once, heard := context.WithTimeout(ctx, time.Minute)
	err = c.WatchNodes(once, nil, func(all []state.Node, _ map[string]error) { nodes = all; heard() }, func(err error) { t.Log(err) })
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, nodes, 1)
	node := nodes[0]
	raw, _, err := d.nomad.Nodes().Info(node.ID, nil)
	require.NoError(t, err)
	require.Len(t, raw.NodeResources.Devices, 1)
	group := raw.NodeResources.Devices[0]
	require.Equal(t, "MiB", group.Attributes["memory"].Unit)
	want := state.Node{
		ID: raw.ID, Name: "dev", Datacenter: "dc1", Pool: "default", Ready: true,
		HostMemory: raw.NodeResources.Memory.MemoryMB << 20, CPU: raw.NodeResources.Cpu.CpuShares,
	}
	published := map[string]bool{}
	for _, dev := range group.Instances {
		published[dev.ID] = dev.Healthy
	}
	for _, uuid := range slices.Sorted(slices.Values(d.info.GPUs["dev"])) {
		want.GPUs = append(want.GPUs, state.GPU{
			UUID: uuid, Model: *group.Attributes["model"].StringVal, Memory: *group.Attributes["memory"].IntVal << 20,
			Seats: []string{uuid + "#0", uuid + "#1"}, Healthy: true,
		})
	}
	require.Equal(t, want, node)
	require.Equal(t, map[string]bool{want.GPUs[0].Seats[0]: true, want.GPUs[0].Seats[1]: true, want.GPUs[1].Seats[0]: true, want.GPUs[1].Seats[1]: true}, published)

	// Both watches run throughout.
	inventory, observed := &follower[[]state.Node]{}, &follower[[]nomad.Job]{}
	watchCtx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.WatchNodes(watchCtx, nil, func(all []state.Node, _ map[string]error) { inventory.update(all) }, inventory.lost)
	})
	notTheDemo := func(list nomad.Listing) {
		observed.update(slices.DeleteFunc(slices.Clone(list.Jobs), func(j nomad.Job) bool { return j.ID == d.info.Job }))
	}
	wg.Go(func() { _ = c.WatchJobs(watchCtx, notTheDemo, observed.lost) })
	defer wg.Wait()
	defer cancel()
	inventory.until(t, "the inventory", func(n []state.Node) error {
		if len(n) != 1 {
			return fmt.Errorf("%d nodes", len(n))
		}
		return nil
	})
	ready := func(want bool) func([]state.Node) error {
		return func(n []state.Node) error {
			if n[0].Ready != want {
				return fmt.Errorf("ready is %t", n[0].Ready)
			}
			return nil
		}
	}
	for _, eligible := range []bool{false, true} {
		_, err := d.nomad.Nodes().ToggleEligibility(node.ID, eligible, nil)
		require.NoError(t, err)
		inventory.until(t, "the node's eligibility", ready(eligible))
	}

	// A model file with the job files that this repository has.
	dir := t.TempDir()
	for name, source := range map[string]string{"failover": jobs.Failover, "demo": jobs.Demo, "ollama": jobs.Ollama, "node": jobs.Node} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".nomad.hcl"), []byte(source), 0o600))
	}
	path := filepath.Join(dir, "models.hcl")
	require.NoError(t, os.WriteFile(path, []byte(`
model "acme/pair" {
  failover = true
  variant "sim" {
    weights = "256MiB"
    job     = "failover.nomad.hcl"
    vars    = { model = "acme/pair" }
  }
  variant "system" {
    weights = "256MiB"
    job     = file("node.nomad.hcl")
    vars    = { memory = ["-backend", "host"] }
  }
}
model "single" {
  variant "demo" {
    weights = "256MiB"
    job     = "demo.nomad.hcl"
    vars    = { slots = 4 }
  }
  variant "ollama" {
    weights = "256MiB"
    engine  = "ollama"
    job     = "ollama.nomad.hcl"
  }
}
`), 0o600))
	_, models, err := modelfile.Load(jobs.Files, path)
	require.NoError(t, err)
	pair, single := models[0], models[1]
	for _, v := range single.Variants {
		_, err := c.Check(ctx, single, v)
		require.NoError(t, err, v.Name)
	}
	_, err = c.Check(ctx, pair, pair.Variants[0])
	require.NoError(t, err)
	_, err = c.Check(ctx, pair, pair.Variants[1])
	require.ErrorIs(t, err, nomad.ErrRefused)
	require.ErrorContains(t, err, `type is "system"`)
	require.ErrorContains(t, err, `no task has a device "nvidia/gpu" block`)
	broken := pair.Variants[0]
	broken.Job = strings.Replace(broken.Job, `driver = "raw_exec"`, `drivr = "raw_exec"`, 1)
	_, err = c.Check(ctx, pair, broken)
	require.ErrorIs(t, err, nomad.ErrRefused)
	require.ErrorContains(t, err, `drivr`)

	// The pair goes to the GPU that the demo leaves free.
	demo := d.alloc().AllocatedResources.Tasks["primary"].Devices[0].DeviceIDs[0]
	second := want.GPUs[0]
	if strings.HasPrefix(demo, second.UUID+"#") {
		second = want.GPUs[1]
	}
	name := replica.Name{Model: pair.Name, Variant: "sim", ID: "0f0e0d0c-0000-4000-8000-000000000001"}
	request := nomad.Request{
		Name: name, Variant: pair.Variants[0], Failover: true, Node: node,
		Placement: state.Placement{Node: node.ID, Seats: second.Seats, Memory: map[string]int64{second.UUID: pair.Variants[0].Memory}, HostMemory: pair.Variants[0].HostMemory},
	}
	job, err := c.Render(ctx, request)
	require.NoError(t, err)
	_, err = c.Validate(ctx, job)
	require.NoError(t, err)
	plan, err := c.Plan(ctx, job)
	require.NoError(t, err)
	require.True(t, plan.Changed)
	require.Empty(t, plan.Failures)
	reg, err := c.Register(ctx, job, 0)
	require.NoError(t, err)
	require.False(t, reg.Already)
	mine := state.Replica{Name: name, Version: 1, JobIndex: reg.Index, Placement: request.Placement}

	one := func(check func(j nomad.Job) error) func([]nomad.Job) error {
		return func(all []nomad.Job) error {
			if len(all) != 1 {
				return fmt.Errorf("%d jobs", len(all))
			}
			return check(all[0])
		}
	}
	found := observed.until(t, "the pair to run", one(func(j nomad.Job) error {
		if len(j.Allocations) != 1 {
			return fmt.Errorf("%+v", j)
		}
		engines := 0
		for _, t := range j.Allocations[0].Tasks {
			if _, engine := j.Allocations[0].Seats[t.Name]; engine && t.State == "running" {
				engines++
			}
		}
		if engines != 2 {
			return fmt.Errorf("%+v", j)
		}
		return nil
	}))[0]
	require.Empty(t, found.Problem)
	require.Empty(t, found.Drift(mine))
	require.Equal(t, request.Placement, found.Placement, "the placement can be told from the job alone")
	require.Equal(t, map[string][]string{"primary": {second.Seats[0]}, "shadow": {second.Seats[1]}}, found.Allocations[0].Seats)
	require.Equal(t, node.ID, found.Allocations[0].Node)
	e := d.engine(pair.Name)
	require.Equal(t, name, e.Name, "the engine bears the replica's name")

	// Writing it once more changes nothing.
	again, err := c.Render(ctx, request)
	require.NoError(t, err)
	repeat, err := c.Register(ctx, again, 0)
	require.NoError(t, err)
	require.Equal(t, reg.Index, repeat.Index)
	require.True(t, repeat.Already)
	plan, err = c.Plan(ctx, again)
	require.NoError(t, err)
	require.False(t, plan.Changed)
	require.Equal(t, reg.Index, plan.Index)
	same, err := c.Register(ctx, again, reg.Index)
	require.NoError(t, err)
	require.Equal(t, reg.Index, same.Index)
	require.True(t, same.Already)

	// Nomad is away for a while, and hangs instead of saying so.
	server := d.pid("nomad-server")
	require.NoError(t, syscall.Kill(server, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(server, syscall.SIGCONT) })
	eventually(t, 30*time.Second, "both watches to notice", func() error {
		for _, losses := range []func() int{
			func() int { inventory.mu.Lock(); defer inventory.mu.Unlock(); return inventory.losses },
			func() int { observed.mu.Lock(); defer observed.mu.Unlock(); return observed.losses },
		} {
			if losses() == 0 {
				return errors.New("not yet")
			}
		}
		return nil
	})
	_, err = c.Register(ctx, again, reg.Index)
	require.ErrorIs(t, err, nomad.ErrUnreachable)
	require.NoError(t, syscall.Kill(server, syscall.SIGCONT))
	inventory.until(t, "the inventory to be up to date again", func([]state.Node) error { return nil })
	observed.until(t, "the jobs to be up to date again", one(func(j nomad.Job) error {
		if drift := j.Drift(mine); len(drift) > 0 {
			return fmt.Errorf("%q", drift)
		}
		return nil
	}))

	// Somebody edits the job.
	edited, _, err := d.nomad.Jobs().Info(*job.ID, nil)
	require.NoError(t, err)
	edited.Priority = new(77)
	_, _, err = d.nomad.Jobs().Register(edited, nil)
	require.NoError(t, err)
	_, err = c.Register(ctx, again, reg.Index)
	require.ErrorIs(t, err, nomad.ErrConflict)
	require.ErrorContains(t, err, "it was changed outside remuda")
	found = observed.until(t, "the edit to be seen", one(func(j nomad.Job) error {
		if j.Index == reg.Index {
			return errors.New("the old index")
		}
		return nil
	}))[0]
	require.Len(t, found.Drift(mine), 1)
	require.Contains(t, found.Drift(mine)[0], "index is")
	back, err := c.Register(ctx, again, found.Index)
	require.NoError(t, err)
	mine.JobIndex = back.Index

	// Somebody stops it.
	_, _, err = d.nomad.Jobs().Deregister(*job.ID, false, nil)
	require.NoError(t, err)
	found = observed.until(t, "the stop to be seen", one(func(j nomad.Job) error {
		if !j.Ended() {
			return fmt.Errorf("%+v", j)
		}
		return nil
	}))[0]
	require.Contains(t, strings.Join(found.Drift(mine), "\n"), "stopped")
	_, err = c.Register(ctx, again, back.Index)
	require.ErrorIs(t, err, nomad.ErrConflict)

	// It is started again, and then the controller stops it.
	restarted, err := c.Register(ctx, again, found.Index)
	require.NoError(t, err)
	require.Greater(t, restarted.Index, found.Index)
	observed.until(t, "the pair to run again", one(func(j nomad.Job) error {
		if j.Stopped || len(j.Allocations) == 0 || j.Allocations[0].Client != nomadapi.AllocClientStatusRunning {
			return fmt.Errorf("%+v", j)
		}
		return nil
	}))
	stop := func(index uint64, purge bool) error {
		_, err := c.Stop(ctx, name, index, purge)
		return err
	}
	require.ErrorIs(t, stop(found.Index, false), nomad.ErrConflict, "it was registered since")
	require.NoError(t, stop(restarted.Index, false))
	require.NoError(t, stop(restarted.Index, false))
	found = observed.until(t, "the pair to end", one(func(j nomad.Job) error {
		if !j.Ended() {
			return fmt.Errorf("%+v", j)
		}
		return nil
	}))[0]
	require.NoError(t, stop(found.Index, true))
	observed.until(t, "the pair to be forgotten", func(all []nomad.Job) error {
		if len(all) > 0 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})

	// What cannot be placed says why.
	nowhere := request
	nowhere.Placement.Seats = []string{"GPU-none#0", "GPU-none#1"}
	nowhere.Placement.Memory = map[string]int64{"GPU-none": request.Variant.Memory}
	job, err = c.Render(ctx, nowhere)
	require.NoError(t, err)
	plan, err = c.Plan(ctx, job)
	require.NoError(t, err)
	require.NotEmpty(t, plan.Failures)
	reg, err = c.Register(ctx, job, 0)
	require.NoError(t, err)
	eventually(t, 20*time.Second, "the reason", func() error {
		why, err := c.Why(ctx, name)
		if err == nil && !strings.Contains(why, "devices") {
			err = fmt.Errorf("%q", why)
		}
		return err
	})
	require.NoError(t, stop(reg.Index, true))
	d.answers("after all that")
}
