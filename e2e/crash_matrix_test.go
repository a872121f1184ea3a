//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
	"remuda/lockd/engine"
)

// matrix is a cluster with one failover pair, whose engines take a moment to start and to
// wake.
type matrix struct {
	*dev
	// gpus is how many each engine uses.
	gpus int
	// token is the largest that was in Consul.
	token replica.Token
}

// shimSecret is what this test's shims take orders with.
const shimSecret = "crash-matrix"

// subject is the engine in the state in question, with its processes.
type subject struct {
	engine.Status
	url                 string // the engine's own
	shim, executor, pid int
	workers             []int
}

// TestCrashMatrix kills each thing that a pair depends on, with SIGKILL, in each state of an
// engine: no process of it is left, its registration is gone, and the pair serves again. The
// engines have a worker on each of 2 GPUs, and in the long form also of 1 and 4.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	sizes := []int{2}
	if long.Enabled() {
		sizes = []int{1, 2, 4}
	}
	for _, gpus := range sizes {
		t.Run(fmt.Sprint(gpus, " GPUs"), func(t *testing.T) { crashMatrix(t, gpus) })
	}
}

func crashMatrix(t *testing.T, gpus int) {
	dir := t.TempDir()
	file, err := os.ReadFile(filepath.Join("..", "jobs", "demo.model.hcl"))
	require.NoError(t, err)
	job, err := os.ReadFile(filepath.Join("..", "jobs", "failover.nomad.hcl"))
	require.NoError(t, err)
	text := strings.Replace(string(file), `vars    = { weights = "256MiB" }`, `vars    = { weights = "16MiB", init_delay = "1s", workers = true, kv_memory = "50GiB" }`, 1)
	require.NotEqual(t, string(file), text)
	text = strings.Replace(text, "count = 1", fmt.Sprintf("count = %d", gpus), 1)
	text = strings.Replace(text, "cost    = 1", "memory  = \"60GiB\"\n    cost    = 1", 1)
	path := filepath.Join(dir, "demo.model.hcl")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	// Orders to the shims need a secret, and only the controller has its own.
	open := regexp.MustCompile(`task "(primary|shadow)" \{`)
	require.Len(t, open.FindAllString(string(job), -1), 2)
	job = open.ReplaceAll(job, []byte("$0\n      env {\n        REMUDA_SHIM_SECRET = \""+shimSecret+"\"\n      }\n"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "failover.nomad.hcl"), job, 0o600))
	m := &matrix{gpus: gpus, dev: newDev(t, func(o *devcluster.Options) { o.GPUs, o.Model = gpus, path })}

	states := []struct {
		name  string
		reach func() subject
	}{
		{"active", m.active}, {"standby", m.standing}, {"init", m.initialising}, {"waking", m.waking}, {"draining", m.draining}, {"parked", m.parked},
	}
	victims := []struct {
		name string
		kill func(s subject) (gone []int)
	}{
		{"engine", func(s subject) []int { kill9(m.t, s.pid); return []int{s.pid, s.shim} }},
		{"shim", func(s subject) []int { kill9(m.t, s.shim); return []int{s.pid, s.shim} }},
		{"shim and engine", func(s subject) []int {
			_ = syscall.Kill(s.shim, syscall.SIGKILL)
			_ = syscall.Kill(s.pid, syscall.SIGKILL)
			return []int{s.pid, s.shim}
		}},
		{"worker", func(s subject) []int { kill9(m.t, s.workers[gpus-1]); return []int{s.pid} }},
		{"task", func(s subject) []int {
			pids := append([]int{s.shim}, childrenOf(m.t, s.shim)...)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // some go with others
			}
			return pids
		}},
		{"executor", func(s subject) []int { kill9(m.t, s.executor); return []int{s.executor, s.pid, s.shim} }},
		{"lockd", func(subject) []int { m.killTasks(" lockd -socket "); return nil }},
		{"gms", func(subject) []int { m.killTasks(serviceCommand); return nil }},
		{"gms and keeper", func(s subject) (gone []int) {
			// What has the weights mapped ends: there is nothing left to share.
			serving, err := m.passing("demo")
			require.NoError(m.t, err)
			for _, e := range serving {
				gone = append(gone, m.enginePID(e.HostPort()))
			}
			if s.State == engine.Waking || s.State == engine.Draining {
				gone = append(gone, s.pid)
			}
			m.killTasks(serviceCommand, keeperCommand)
			return gone
		}},
		{"Nomad client", func(subject) []int {
			require.NoError(m.t, m.cluster.End("nomad-client", syscall.SIGKILL))
			require.NoError(m.t, m.cluster.Start("nomad-client"))
			return nil
		}},
	}
	var parts []part[*matrix]
	for i, s := range states {
		for j, v := range victims {
			// The short form takes one engine's death and one other's for each state, and all of
			// them for an engine that serves.
			if !long.Enabled() && i > 0 && j != 1 && j != (i+3)%len(victims) {
				continue
			}
			parts = append(parts, part[*matrix]{s.name + "/" + v.name, func(t *testing.T, m *matrix) { m.survives(s.reach, v.kill) }})
		}
	}
	inTurn(t, m, func(t *testing.T) { m.t = t }, parts)
}

// survives reaches a state, kills, and requires that all is well afterwards.
func (m *matrix) survives(reach func() subject, kill func(subject) []int) {
	m.t.Helper()
	m.whole()
	s := reach()
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
	began := time.Now()
	gone := kill(s)
	if slices.Contains(gone, s.pid) {
		gone = append(gone, s.workers...)
	}
	if len(gone) > 0 {
		eventually(m.t, 20*time.Second, "the processes and the registration to be gone", func() error {
			for _, pid := range gone {
				if alive(pid) {
					return fmt.Errorf("process %d lives", pid)
				}
			}
			if registered() {
				return errors.New("it is registered")
			}
			return nil
		})
		m.t.Logf("nothing of it is left after %s", time.Since(began).Round(time.Millisecond))
	}
	m.serves()
	m.whole()
	m.t.Logf("whole again after %s", time.Since(began).Round(time.Millisecond))
}

// whole waits until one engine of the pair serves, the other one stands by, nothing else runs,
// and tokens have grown.
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
	eventually(m.t, 30*time.Second, "two engines and two shims to run", func() error {
		if running := enginesRunning(m.dev); len(running) != 2 {
			return fmt.Errorf("engines: %q", running)
		}
		if shims := shimsRunning(m.dev); len(shims) != 2 {
			return fmt.Errorf("shims: %q", shims)
		}
		return nil
	})
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

// initialising kills the standby, whose next life takes a second to start.
func (m *matrix) initialising() subject {
	_, standby := m.pair()
	kill9(m.t, standby.PID)
	return m.of(m.await(standby.Role, func(st engine.Status) bool { return st.State == engine.Init && st.PID != 0 && st.PID != standby.PID }))
}

// waking kills the engine that serves, while the other one takes long to wake.
func (m *matrix) waking() subject {
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
	return "http://127.0.0.1:" + strconv.Itoa(port(m.t, m.alloc(), role+"_shim"))
}

// await waits until the engine of the role is as wanted.
func (m *matrix) await(role string, ok func(engine.Status) bool) engine.Status {
	m.t.Helper()
	var st engine.Status
	url := m.shimOf(role)
	eventually(m.t, time.Minute, "the state of the "+role, func() error {
		st = engine.Status{}
		resp, err := http.Get(url + "/state")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
			return err
		}
		if !ok(st) {
			return fmt.Errorf("it is %+v", st)
		}
		return nil
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
