//go:build e2e

// Package e2e drives remuda on real Nomad and Consul (and a real Ollama), the
// way a user does: through the binaries that `make build` leaves in bin/.
package e2e

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/proclog"
)

// binary finds a built program; the Makefile says where.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("REMUDA_BIN")
	require.NotEmpty(t, dir, "REMUDA_BIN is not set: run these tests with 'make e2e'")
	return filepath.Join(dir, name)
}

func toolPath(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("REMUDA_TOOLS")
	require.NotEmpty(t, dir, "REMUDA_TOOLS is not set: run these tests with 'make e2e'")
	return filepath.Join(dir, name)
}

// dev is a running dev cluster.
type dev struct {
	t   testing.TB
	out *proclog.Buffer
	// cluster runs in this process, so that a test can end and start its daemons; cmd is
	// `remuda dev`, for tests of the program itself. One of them is nil.
	cluster *devcluster.Cluster
	cmd     *exec.Cmd
	cancel  context.CancelFunc
	done    chan struct{}
	err     error

	info       devcluster.Info
	nomad      *nomadapi.Client
	consul     *consulapi.Client
	controller *api.Client
}

// startDev starts `remuda dev` with args; it does not wait for it.
func startDev(t testing.TB, env []string, args ...string) *dev {
	t.Helper()
	return startProgram(t, exec.Command(binary(t, "remuda"), append([]string{"dev"}, args...)...), env)
}

// startProgram is startDev for a command that is given.
func startProgram(t testing.TB, cmd *exec.Cmd, env []string) *dev {
	t.Helper()
	d := &dev{t: t, cmd: cmd, out: &proclog.Buffer{}, done: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.WaitDelay = time.Second
	require.NoError(t, d.cmd.Start())
	d.cancel = func() { d.signal(syscall.SIGCONT); d.signal(syscall.SIGTERM) }
	go func() { d.err = d.cmd.Wait(); close(d.done) }()
	t.Cleanup(d.cleanUp)
	return d
}

// newDev starts a cluster in this process, with a directory of its own, and waits for it.
func newDev(t testing.TB, change func(*devcluster.Options)) *dev {
	t.Helper()
	d := &dev{t: t, out: &proclog.Buffer{}, done: make(chan struct{})}
	opts := devcluster.DefaultOptions()
	opts.Remuda, opts.DataDir, opts.Out, opts.NoAutoscaler = binary(t, "remuda"), dataDir(t), d.out, true
	opts.Seats = 2 // so that few replicas fill a cluster
	change(&opts)
	var err error
	d.cluster, err = devcluster.New(opts)
	require.NoError(t, err)
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(context.Background())
	go func() { d.err = d.cluster.Run(ctx, nil); close(d.done) }()
	t.Cleanup(d.cleanUp)
	select {
	case <-d.cluster.Ready():
	case <-d.done:
		t.Fatalf("the cluster ended: %v\n%s", d.err, d.out)
	}
	d.info = d.cluster.Info()
	d.connect()
	return d
}

// cleanUp ends the cluster at the end of its test.
func (d *dev) cleanUp() {
	d.cancel()
	select {
	case <-d.done:
	case <-time.After(3 * time.Minute):
		d.t.Errorf("the cluster did not end within 3 min")
		if d.cmd != nil {
			_ = d.cmd.Process.Kill()
			<-d.done
		}
	}
	if d.t.Failed() {
		d.t.Logf("remuda dev printed:\n%s", d.out)
		d.dumpLogs()
	}
}

// dumpLogs shows the ends of the daemons' and the tasks' logs.
func (d *dev) dumpLogs() {
	files, _ := filepath.Glob(filepath.Join(d.info.DataDir, "logs", "*.log"))
	tasks, _ := filepath.Glob(filepath.Join(d.info.DataDir, "nomad", "alloc", "*", "alloc", "logs", "*.std*"))
	for _, f := range append(files, tasks...) {
		if info, err := os.Lstat(f); err != nil || !info.Mode().IsRegular() {
			continue // Nomad's pipes would be waited for
		}
		raw, _ := os.ReadFile(f)
		d.t.Logf("%s:\n%s", f, raw[max(0, len(raw)-6000):])
	}
}

func (d *dev) signal(sig syscall.Signal) { _ = d.cmd.Process.Signal(sig) }

// await waits until the cluster of `remuda dev` is up.
func (d *dev) await(dataDir string) *dev {
	d.t.Helper()
	path := filepath.Join(dataDir, devcluster.InfoFile)
	eventually(d.t, 3*time.Minute, "remuda dev to come up", func() error {
		select {
		case <-d.done:
			d.t.Fatalf("remuda dev ended: %v\n%s", d.err, d.out)
		default:
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &d.info)
	})
	d.connect()
	return d
}

// connect makes the clients.
func (d *dev) connect() {
	d.t.Helper()
	nc := nomadapi.DefaultConfig()
	nc.Address = d.info.Nomad
	var err error
	d.nomad, err = nomadapi.NewClient(nc)
	require.NoError(d.t, err)
	cc := consulapi.DefaultConfig()
	cc.Address = d.info.Consul
	d.consul, err = consulapi.NewClient(cc)
	require.NoError(d.t, err)
	d.controller, err = api.NewClient(api.Config{Addresses: d.info.Controllers, Timeout: 20 * time.Second})
	require.NoError(d.t, err)
	d.t.Cleanup(d.controller.Close)
}

// pause keeps the controller from bringing back what a test takes away.
func (d *dev) pause() {
	d.t.Helper()
	_, err := d.controller.SetSwitch(d.t.Context(), state.SwitchPauseReconcile, api.SwitchRequest{Value: "on"})
	require.NoError(d.t, err)
}

// dataDir is a fresh directory with a short, real path.
func dataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "remuda-e2e-")
	require.NoError(t, err)
	dir, err = filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	return dir
}

// stop ends the cluster, `remuda dev` with sig, and requires that nothing is left.
func (d *dev) stop(sig syscall.Signal) {
	d.t.Helper()
	if d.cmd != nil {
		d.signal(sig)
	} else {
		d.cancel()
	}
	select {
	case <-d.done:
	case <-time.After(3 * time.Minute):
		d.t.Fatalf("the cluster did not end within 3 min of %s; it printed:\n%s", sig, d.out)
	}
	require.NoError(d.t, d.err, "%s", d.out)
	requireNothingLeft(d.t, d.info.DataDir)
}

// processesOf lists what was started for the cluster in dir, found by its
// environment or by a path below dir on the command line.
func processesOf(dir string) []string {
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		env, _ := os.ReadFile(p + "/environ")
		cmd, _ := os.ReadFile(p + "/cmdline")
		if pid, _ := strconv.Atoi(filepath.Base(p)); pid == os.Getpid() || len(cmd) == 0 {
			continue
		}
		if bytes.Contains(env, []byte(dir+"/")) || bytes.Contains(append(env, 0), []byte(dir+"\x00")) || bytes.Contains(cmd, []byte(dir+"/")) {
			found = append(found, filepath.Base(p)+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	return found
}

func mountsOf(dir string) []string {
	var found []string
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range strings.Split(string(raw), "\n") {
		if strings.Contains(line, dir+"/") {
			found = append(found, line)
		}
	}
	return found
}

func requireNothingLeft(t testing.TB, dir string) {
	t.Helper()
	require.Empty(t, processesOf(dir), "processes are left behind")
	require.Empty(t, mountsOf(dir), "mounts are left behind")
}

// eventually polls until probe returns nil.
func eventually(t testing.TB, limit time.Duration, what string, probe func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := probe()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// passing lists the engines of model whose check passes.
func (d *dev) passing(model string) ([]replica.Engine, error) {
	entries, _, err := d.consul.Health().Service(replica.ServiceName, "model="+model, true, nil)
	if err != nil {
		return nil, err
	}
	var engines []replica.Engine
	for _, e := range entries {
		token, err := replica.ParseToken(e.Service.Meta["token"])
		if err != nil {
			return nil, err
		}
		engines = append(engines, replica.Engine{
			Name:    replica.Name{Model: e.Service.Meta["model"], Variant: e.Service.Meta["variant"], ID: e.Service.Meta["replica"]},
			Role:    e.Service.Meta["role"],
			Address: e.Service.Address, Port: e.Service.Port, Token: token, Offer: e.Service.Meta["offer"], Passing: true,
		})
	}
	return engines, nil
}

// keyOf derives an engine's API key as a gateway does, empty for an engine that asks for none.
func (d *dev) keyOf(e replica.Engine) (string, error) {
	if e.Offer == "" {
		return "", nil
	}
	s, _, err := d.controller.GatewayState(context.Background(), api.QueryOptions{Stale: true})
	if err != nil {
		return "", err
	}
	raw, err := base64.RawURLEncoding.DecodeString(s.EngineKey)
	if err != nil {
		return "", err
	}
	private, err := ecdh.X25519().NewPrivateKey(raw)
	if err != nil {
		return "", err
	}
	return replica.EngineKey(private, e.Name.String(), e.Offer)
}

// inCatalog tells whether `consul catalog services` lists the engine at all.
func (d *dev) inCatalog() (bool, error) {
	services, _, err := d.consul.Catalog().Services(nil)
	_, there := services[replica.ServiceName]
	return there, err
}

// engine waits for the model's one passing engine.
func (d *dev) engine(model string) replica.Engine {
	d.t.Helper()
	var e replica.Engine
	eventually(d.t, time.Minute, "an engine of "+model+" in Consul", func() error {
		engines, err := d.passing(model)
		if err != nil {
			return err
		}
		if len(engines) != 1 {
			return fmt.Errorf("%d engines", len(engines))
		}
		e = engines[0]
		return nil
	})
	return e
}

// shimState is the part of the shim's /state that tests use.
type shimState struct {
	State string `json:"state"`
	PID   int    `json:"pid"`
}

// alloc returns the newest running allocation of the cluster's job.
func (d *dev) alloc() *nomadapi.Allocation {
	d.t.Helper()
	return d.allocOf(d.info.Job)
}

// allocOf returns the newest running allocation of a job.
func (d *dev) allocOf(job string) *nomadapi.Allocation {
	d.t.Helper()
	var found *nomadapi.Allocation
	eventually(d.t, time.Minute, "a running allocation", func() error {
		list, _, err := d.nomad.Jobs().Allocations(job, false, nil)
		if err != nil {
			return err
		}
		for _, a := range list {
			if a.ClientStatus == nomadapi.AllocClientStatusRunning {
				found, _, err = d.nomad.Allocations().Info(a.ID, nil)
				return err
			}
		}
		return errors.New("none")
	})
	return found
}

// port returns the host port that the allocation's network gives to label.
func port(t testing.TB, a *nomadapi.Allocation, label string) int {
	t.Helper()
	for _, p := range a.AllocatedResources.Shared.Ports {
		if p.Label == label {
			return p.Value
		}
	}
	t.Fatalf("allocation %s has no port %q", a.ID, label)
	return 0
}

// shim asks the shim of the job's primary for its state.
func (d *dev) shim() (shimState, error) {
	var st shimState
	a := d.alloc()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/state", port(d.t, a, "shim")))
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// parent returns a process's parent.
func parent(t testing.TB, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	ppid, err := strconv.Atoi(fields[1])
	require.NoError(t, err)
	return ppid
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(t testing.TB, pid int) []int {
	t.Helper()
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(strings.Split(f, "/")[2])
			pids = append(pids, child)
		}
	}
	return pids
}

// processesOfReplica lists the processes of `remuda VERB` whose environment names the
// replica.
func processesOfReplica(t testing.TB, name, verb string) []int {
	t.Helper()
	var out []int
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(cmdline), "\x00")
		if slices.Contains(strings.Split(string(environ), "\x00"), "REMUDA_GROUP="+name) && len(args) > 1 && args[1] == verb {
			out = append(out, pid)
		}
	}
	return out
}

// kill9 kills processes in one go.
func kill9(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "kill -9 %d", pid)
	}
}

// command runs a CLI with the cluster's addresses and returns what it printed.
func (d *dev) command(name string, args ...string) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, toolPath(d.t, name), args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+d.info.Nomad, "CONSUL_HTTP_ADDR="+d.info.Consul)
	out, err := cmd.CombinedOutput()
	require.NoError(d.t, err, "%s %s:\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

// getBody fetches url.
func getBody(t testing.TB, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(raw)
}
