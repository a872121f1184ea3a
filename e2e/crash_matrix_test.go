//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
	"remuda/internal/vram"
	"remuda/lockd/engine"
)

// matrix is a cluster with one replica, whose engines take a moment to start and to wake.
type matrix struct {
	*dev
	// gpus is how many each engine uses.
	gpus int
	// single: the replica is one engine on one GPU, and not a failover pair.
	single bool
	// token is the largest that was in Consul.
	token replica.Token
	// memory is what is in use on each GPU while the replica is whole.
	memory map[string]int64
	// left is how long registrations outlived their engines.
	left []time.Duration
}

// shimSecret is what this test's shims take orders with.
const shimSecret = "crash-matrix"

// victim is what is killed. kill returns the processes that must end with it.
type victim struct {
	name string
	kill func(s subject) (gone []int)
	// limit is how long they may take, 20 s if 0.
	limit time.Duration
	// either is a state in which the engine may end and may go on.
	either engine.State
}

// subject is the engine in the state in question, with its processes.
type subject struct {
	engine.Status
	url                 string // the engine's own
	shim, executor, pid int
	workers             []int
}

// TestCrashMatrix kills each thing that a replica depends on, with SIGKILL, in each state of an
// engine: no process of it is left, its registration is gone, its memory is back, and the replica
// serves again. What does not depend on the killed thing goes on. The engines of a pair have a worker
// on each of 2 GPUs, and in the long form also of 1 and 4.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	t.Run("single", func(t *testing.T) { crashMatrix(t, 0) })
	sizes := []int{2}
	if long.Enabled() {
		sizes = []int{1, 2, 4}
	}
	for _, gpus := range sizes {
		t.Run(fmt.Sprint(gpus, " GPUs"), func(t *testing.T) { crashMatrix(t, gpus) })
	}
}

// crashMatrix is the matrix of a pair with so many GPUs for each engine, or of a single engine.
func crashMatrix(t *testing.T, gpus int) {
	dir := t.TempDir()
	m := &matrix{gpus: gpus, single: gpus == 0}
	name, engines := "failover.nomad.hcl", 2
	if m.single {
		name, engines = "demo.nomad.hcl", 1
	}
	file, err := os.ReadFile(filepath.Join("..", "jobs", "demo.model.hcl"))
	require.NoError(t, err)
	job, err := os.ReadFile(filepath.Join("..", "jobs", name))
	require.NoError(t, err)
	vars := `weights = "16MiB", init_delay = "1s"`
	if !m.single {
		vars += `, workers = true, kv_memory = "50GiB"`
	}
	if long.Enabled() { // an engine that hangs while it starts is found after its start budget
		if m.single {
			const dialect = `"-dialect", "sim",`
			require.Contains(t, string(job), dialect)
			job = bytes.Replace(job, []byte(dialect), []byte(dialect+` "-init-timeout", "30s",`), 1)
		} else {
			vars += `, start_budget = "30s"`
		}
	}
	text := strings.Replace(string(file), `vars    = { weights = "256MiB" }`, `vars    = { `+vars+` }`, 1)
	require.NotEqual(t, string(file), text)
	if m.single {
		text = strings.NewReplacer("\n  failover = true", "", `"failover.nomad.hcl"`, strconv.Quote(name)).Replace(text)
	} else {
		text = strings.Replace(text, "count = 1", fmt.Sprintf("count = %d", gpus), 1)
		text = strings.Replace(text, "cost    = 1", "memory  = \"60GiB\"\n    cost    = 1", 1)
	}
	path := filepath.Join(dir, "demo.model.hcl")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	// Orders to the shims need a secret, and only the controller has its own.
	open := regexp.MustCompile(`task "(primary|shadow)" \{`)
	require.Len(t, open.FindAllString(string(job), -1), engines)
	job = open.ReplaceAll(job, []byte("$0\n      env {\n        REMUDA_SHIM_SECRET = \""+shimSecret+"\"\n      }\n"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), job, 0o600))
	m.dev = newDev(t, func(o *devcluster.Options) { o.GPUs, o.Model = max(gpus, 1), path })

	states := []struct {
		name  string
		reach func() subject
	}{
		{"active", m.active}, {"standby", m.standing}, {"init", m.initialising}, {"waking", m.waking}, {"draining", m.draining}, {"parked", m.parked},
	}
	if m.single {
		states = slices.Delete(states, 1, 2)
	}
	victims := []victim{
		{name: "engine", kill: func(s subject) []int { kill9(m.t, s.pid); return []int{s.pid, s.shim} }},
		{name: "shim", kill: func(s subject) []int { kill9(m.t, s.shim); return []int{s.pid, s.shim} }},
		{name: "shim and engine", kill: func(s subject) []int {
			_ = syscall.Kill(s.shim, syscall.SIGKILL)
			_ = syscall.Kill(s.pid, syscall.SIGKILL)
			return []int{s.pid, s.shim}
		}},
		{name: "worker", kill: func(s subject) []int { kill9(m.t, s.workers[gpus-1]); return []int{s.pid} }},
		{name: "task", kill: func(s subject) []int {
			pids := append([]int{s.shim}, childrenOf(m.t, s.shim)...)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // some go with others
			}
			return pids
		}},
		{name: "executor", kill: func(s subject) []int { kill9(m.t, s.executor); return []int{s.executor, s.pid, s.shim} }},
		{name: "lockd", kill: func(subject) []int { m.killTasks(" lockd -socket "); return nil }},
		{name: "gms", kill: func(subject) []int { m.killTasks(serviceCommand); return nil }},
		{name: "gms and keeper", kill: func(s subject) (gone []int) {
			// What has the weights mapped ends: there is nothing left to share. A single engine has its own. An
			// engine that wakes maps them then: it ends if it has, and else finds those that the next primary loads.
			if !m.single {
				serving, err := m.passing("demo")
				require.NoError(m.t, err)
				for _, e := range serving {
					gone = append(gone, m.enginePID(e.HostPort()))
				}
				if s.State == engine.Draining {
					gone = append(gone, s.pid)
				}
			}
			m.killTasks(serviceCommand, keeperCommand)
			return gone
		}, either: engine.Waking},
		{name: "Nomad client", kill: func(subject) []int {
			require.NoError(m.t, m.cluster.End("nomad-client", syscall.SIGKILL))
			require.NoError(m.t, m.cluster.Start("nomad-client"))
			return nil
		}},
	}
	// more are for the long form: they take long, or the short form has them in another test.
	more := []victim{
		{name: "Nomad server", kill: func(subject) []int {
			require.NoError(m.t, m.cluster.End("nomad-server", syscall.SIGKILL))
			require.NoError(m.t, m.cluster.Start("nomad-server"))
			return nil
		}},
		{name: "lockd and engine", kill: func(s subject) []int {
			kill9(m.t, s.pid)
			m.killTasks(" lockd -socket ")
			return []int{s.pid, s.shim}
		}},
		{name: "both engines", kill: func(s subject) []int {
			if engines := pids(m.t, enginesRunning(m.dev)); len(engines) > 0 {
				kill9(m.t, engines...)
			}
			return []int{s.pid, s.shim}
		}},
		{name: "shim hangs", kill: func(s subject) []int {
			require.NoError(m.t, syscall.Kill(s.shim, syscall.SIGSTOP))
			return []int{s.pid, s.shim}
		}, limit: 2 * time.Minute},
		{name: "engine hangs", kill: func(s subject) []int {
			require.NoError(m.t, syscall.Kill(s.pid, syscall.SIGSTOP))
			return []int{s.pid}
		}, limit: 2 * time.Minute},
	}
	var parts []part[*matrix]
	for i, s := range states {
		for j, v := range victims {
			if m.single && v.name == "worker" {
				continue
			}
			// The short form takes one engine's death and one other's for each state, and all of
			// them for an engine that serves.
			if !long.Enabled() && i > 0 && j != 1 && j != (i+3)%len(victims) {
				continue
			}
			parts = append(parts, part[*matrix]{s.name + "/" + v.name, func(t *testing.T, m *matrix) { m.survives(s.reach, v) }})
		}
		for _, v := range more {
			if !long.Enabled() || v.name == "both engines" && m.single {
				continue
			}
			parts = append(parts, part[*matrix]{s.name + "/" + v.name, func(t *testing.T, m *matrix) { m.survives(s.reach, v) }})
		}
	}
	inTurn(t, m, func(t *testing.T) { m.t = t }, parts)
	slices.Sort(m.left)
	if len(m.left) > 0 {
		p50 := m.left[(len(m.left)-1)/2]
		t.Logf("registrations outlived what was killed, n=%d: p50 %s, max %s", len(m.left), p50, m.left[len(m.left)-1])
		require.Less(t, p50, time.Second)
	}
}

// survives reaches a state, kills, and requires that all is well afterwards.
func (m *matrix) survives(reach func() subject, v victim) {
	m.t.Helper()
	var s subject
	for try := 1; ; try++ {
		if try > 1 {
			m.serves()
		}
		m.whole()
		s = reach()
		if now, err := m.status(s.Role); err == nil && now.State == s.State && now.PID == s.PID && now.Parked == s.Parked {
			break
		}
		require.Less(m.t, try, 5, "the engine left the state %s before it was killed", s.State)
	}
	registered := func() bool {
		engines, _, err := m.consul.Catalog().Service(replica.ServiceName, "", nil)
		require.NoError(m.t, err)
		for _, e := range engines {
			if e.ServiceMeta["cohort"] == s.Cohort {
				return true
			}
		}
		return false
	}
	was := registered()
	began := time.Now()
	gone := v.kill(s)
	if slices.Contains(gone, s.pid) {
		gone = append(gone, s.workers...)
	}
	if len(gone) > 0 {
		unregistered := false
		eventually(m.t, cmp.Or(v.limit, 20*time.Second), "the processes and the registration to be gone", func() error {
			if !unregistered && registered() {
				return errors.New("it is registered")
			}
			if !unregistered && was && v.limit == 0 { // it takes long to see that something hangs
				m.left = append(m.left, time.Since(began))
			}
			unregistered = true
			for _, pid := range gone {
				if alive(pid) {
					return fmt.Errorf("process %d lives", pid)
				}
			}
			return nil
		})
		m.t.Logf("nothing of it is left after %s", time.Since(began).Round(time.Millisecond))
	}
	m.serves()
	m.whole()
	// An engine that drains ends with its last request, whatever was killed.
	if len(gone) == 0 && s.State != engine.Draining && s.State != v.either {
		for _, pid := range append([]int{s.shim, s.pid}, s.workers...) {
			require.True(m.t, alive(pid), "process %d of the engine has ended: what was killed is not a part of it", pid)
		}
	}
	m.t.Logf("whole again after %s", time.Since(began).Round(time.Millisecond))
}

// pair waits until the replica is complete. A single engine has no standby.
func (m *matrix) pair() (active, standby engine.Status) {
	m.t.Helper()
	if !m.single {
		return m.dev.pair()
	}
	m.engine("demo")
	return m.await(replica.RolePrimary, func(st engine.Status) bool { return st.State == engine.Active }), engine.Status{}
}

// whole waits until one engine serves and the other one of a pair stands by, nothing else runs, the
// GPUs hold what they held before, and tokens have grown.
func (m *matrix) whole() {
	m.t.Helper()
	// A replica that sleeps loses its weights with its process: another one takes its place.
	engine := m.engine("demo")
	if job := engine.Name.String(); job != m.info.Job {
		m.info.Job, m.token = job, replica.Token{}
	}
	active, _ := m.pair()
	require.GreaterOrEqual(m.t, active.Token.Compare(m.token), 0, "token %s after %s", active.Token, m.token)
	m.token = active.Token
	want := 2
	if m.single {
		want = 1
	}
	eventually(m.t, 30*time.Second, "the engines and shims, and nothing else", func() error {
		if running := enginesRunning(m.dev); len(running) != want {
			return fmt.Errorf("engines: %q", running)
		}
		if shims := shimsRunning(m.dev); len(shims) != want {
			return fmt.Errorf("shims: %q", shims)
		}
		return nil
	})
	eventually(m.t, 30*time.Second, "the memory as it was", m.memoryIsBack)
}

// memoryIsBack compares what is in use on each GPU with what it was when the replica was whole for the first
// time.
func (m *matrix) memoryIsBack() error {
	first := m.memory == nil
	if first {
		m.memory = map[string]int64{}
	}
	for _, gpu := range slices.Concat(slices.Collect(maps.Values(m.info.GPUs))...) {
		used, _, err := vram.Used(filepath.Join(m.info.DataDir, "gpus"), gpu)
		if err != nil {
			return err
		}
		if first {
			m.memory[gpu] = used
			require.Positive(m.t, used, gpu)
		}
		if used != m.memory[gpu] {
			return fmt.Errorf("%d bytes in use on %s: must be %d", used, gpu, m.memory[gpu])
		}
	}
	return nil
}

// shimsRunning lists the shims of the cluster.
func shimsRunning(d *dev) []string {
	return slices.DeleteFunc(processesOf(d.info.DataDir), func(p string) bool {
		_, command, _ := strings.Cut(p, " ")
		return !strings.Contains(command, " engine -dialect ") || strings.Contains(command, "executor")
	})
}

// of returns an engine with its processes.
func (m *matrix) of(st engine.Status) subject {
	m.t.Helper()
	s := subject{Status: st, url: "http://" + st.Address, pid: st.PID}
	s.shim = parent(m.t, st.PID)
	s.executor = parent(m.t, s.shim)
	eventually(m.t, 10*time.Second, "the workers", func() error {
		if s.workers = childrenOf(m.t, s.pid); len(s.workers) != m.gpus {
			return fmt.Errorf("processes %v", s.workers)
		}
		return nil
	})
	return s
}

func (m *matrix) active() subject {
	active, _ := m.pair()
	return m.of(active)
}

func (m *matrix) standing() subject {
	_, standby := m.pair()
	return m.of(standby)
}

// initialising kills the standby, or the single engine: its next life takes a second to start.
func (m *matrix) initialising() subject {
	active, standby := m.pair()
	if m.single {
		standby = active
	}
	kill9(m.t, standby.PID)
	return m.of(m.await(standby.Role, func(st engine.Status) bool { return st.State == engine.Init && st.PID != 0 && st.PID != standby.PID }))
}

// waking kills the engine that serves, while the other one takes long to wake. A single engine is woken by a
// request.
func (m *matrix) waking() subject {
	if m.single {
		s := m.parked()
		m.faults(s.Status, `{"wake": "slow"}`)
		ctx, cancel := context.WithCancel(context.Background())
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			_, _ = streamChat(ctx, m.info.Gateway, "demo", "wake", 8)
		}()
		m.t.Cleanup(func() { cancel(); <-asked })
		return m.of(m.await(s.Role, func(st engine.Status) bool { return st.State == engine.Waking }))
	}
	active, standby := m.pair()
	m.faults(standby, `{"wake": "slow"}`)
	kill9(m.t, active.PID)
	return m.of(m.await(standby.Role, func(st engine.Status) bool { return st.State == engine.Waking }))
}

// draining asks for a drain while a request runs.
func (m *matrix) draining() subject {
	active, _ := m.pair()
	key, err := m.keyOf(m.engine("demo"))
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = streamChat(context.WithValue(ctx, bearer{}, key), "http://"+active.Address, "demo", "a long answer", 4000)
	}()
	m.t.Cleanup(func() { cancel(); <-asked })
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, m.shimOf(active.Role)+"/v1/drain?timeout=30s", nil)
		req.Header.Set("Authorization", "Bearer "+shimSecret)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	m.t.Cleanup(func() { cancel(); <-drained })
	return m.of(m.await(active.Role, func(st engine.Status) bool { return st.State == engine.Draining }))
}

// parked has the controller put the pair to sleep.
func (m *matrix) parked() subject {
	active, _ := m.pair()
	cmd := exec.Command(binary(m.t, "remuda"), "evict", "demo", "-to", "warm", "-force")
	cmd.Env = append(os.Environ(), "REMUDA_ADDR="+m.info.Controller)
	out, err := cmd.CombinedOutput()
	require.NoError(m.t, err, string(out))
	// Until all of it is done, the replica goes COLD if the memory service ends.
	eventually(m.t, 30*time.Second, "the replica to be WARM", func() error {
		r, _, err := m.controller.Replica(m.t.Context(), m.info.Job, api.QueryOptions{})
		if err == nil && r.Status != "warm" {
			err = fmt.Errorf("it is %s", r.Status)
		}
		return err
	})
	return m.of(m.await(active.Role, func(st engine.Status) bool { return st.State == engine.Standby && st.Parked }))
}

// serves asks until the pair answers: a request is what wakes one that was put to sleep.
func (m *matrix) serves() {
	m.t.Helper()
	eventually(m.t, time.Minute, "an answer", func() error {
		got, err := streamChat(m.t.Context(), m.info.Gateway, "demo", "after the kill", 8)
		if err == nil && got.text != exact("demo", "after the kill", 8).Text {
			m.t.Fatalf("wrong text %q", got.text)
		}
		return err
	})
}

// faults switches faults of an engine.
func (m *matrix) faults(st engine.Status, set string) {
	m.t.Helper()
	resp, err := http.Post("http://"+st.Address+"/sim/faults", "application/json", bytes.NewBufferString(set))
	require.NoError(m.t, err)
	defer resp.Body.Close()
	require.Equal(m.t, http.StatusOK, resp.StatusCode)
}

// shimOf is the address of a shim.
func (m *matrix) shimOf(role string) string {
	m.t.Helper()
	label := role + "_shim"
	if m.single {
		label = "shim"
	}
	return "http://127.0.0.1:" + strconv.Itoa(port(m.t, m.alloc(), label))
}

// status reads the state of the engine of a role once.
func (m *matrix) status(role string) (st engine.Status, err error) {
	m.t.Helper()
	resp, err := http.Get(m.shimOf(role) + "/state")
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// await waits until the engine of the role is as wanted.
func (m *matrix) await(role string, ok func(engine.Status) bool) (st engine.Status) {
	m.t.Helper()
	eventually(m.t, time.Minute, "the state of the "+role, func() (err error) {
		if st, err = m.status(role); err == nil && !ok(st) {
			err = fmt.Errorf("it is %+v", st)
		}
		return err
	})
	return st
}

// alive reports whether a process has not ended.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(after, "Z")
}
