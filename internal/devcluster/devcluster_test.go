package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsimple"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"remuda/controller/agent"
	"remuda/controller/gateway"
	"remuda/controller/placement"
	"remuda/controller/planner"
	"remuda/controller/state"
	"remuda/internal/sim/gpu"
	"remuda/jobs"
	"remuda/lockd/cohort"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsNameEveryMistake(t *testing.T) {
	_, err := New(Options{GPUs: 17, Seats: 65, Nodes: 9, Controllers: 2, Gateways: 0, Autoscalers: 3, Engine: "vllm", GGUF: "x", Settings: map[string][]string{"gatway": nil}})
	for _, want := range []string{"-gpus is 17: must be 1 to 16", "-seats is 65: must be 1 to 64", `-engine is "vllm": must be sim or ollama`, "-gguf needs -engine ollama",
		"-nodes is 9: must be 1 to 8", "-controllers is 2: must be 1, 3 or 5", "-gateways is 0: must be 1 to 4", "-autoscalers is 3: must be 1 to 2", `-set names the daemon "gatway": must be one of nomad-server, controller, `} {
		require.ErrorContains(t, err, want)
	}
	o := DefaultOptions()
	o.Single, o.Model = true, "m.hcl"
	_, err = New(o)
	require.ErrorContains(t, err, "-model goes with neither -engine nor -single")
	o = DefaultOptions()
	o.Policy = "hpaa"
	_, err = New(o)
	require.ErrorContains(t, err, `-policy is "hpaa": must be capacity, hpa, replicate, utilization, predictive, or a file of policies`)
	_, err = New(DefaultOptions())
	require.NoError(t, err)
}

func TestPorts(t *testing.T) {
	// A default port is taken here, so that its daemon must get another.
	taken, err := net.Listen("tcp", loopback(defaultPorts["consul-http"]))
	if err == nil {
		defer taken.Close()
	}
	o := DefaultOptions()
	o.Nodes, o.Controllers, o.Gateways, o.Autoscalers = 8, 5, 4, 2
	names := o.portNames()
	a, err := claimPorts(names)
	require.NoError(t, err)
	defer a.Close()
	b, err := claimPorts(names)
	require.NoError(t, err)
	defer b.Close()
	require.NotEqual(t, a.base, b.base)
	require.NotEqual(t, defaultPorts["consul-http"], a.ports["consul-http"])
	seen := map[int]string{}
	for _, block := range []*portBlock{a, b} {
		low, _ := block.dynamic(0, o.Nodes)
		require.Len(t, block.ports, len(names))
		for name, port := range block.ports {
			require.Empty(t, seen[port], "port %d is also that of %s", port, name)
			seen[port] = name
			if port != defaultPorts[name] {
				require.Greater(t, port, block.base, name)
				require.Less(t, port, low, "%s has a port that Nomad may give to a task", name)
			}
		}
		after := low - 1
		for node := range o.Nodes {
			low, high := block.dynamic(node, o.Nodes)
			require.Equal(t, after+1, low)
			require.Greater(t, high, low)
			after = high
		}
		require.Less(t, after, block.base+blockSize)
	}
	base := a.base
	require.NoError(t, a.Close())
	again, err := claimPorts(names)
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, base, again.base, "a block that was given back is free")
}

// TestListensAt: a daemon is up only when it listens itself.
func TestListensAt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, listensAt(os.Getpid(), port))
	other := process(t, "X=y", "sh", "-c", "echo ready; while :; do sleep 1; done")
	err = listensAt(other.Process.Pid, port)
	require.ErrorAs(t, err, &errTaken{})
	require.ErrorContains(t, err, fmt.Sprintf("port %d was taken meanwhile by process %d (", port, os.Getpid()))
	require.NoError(t, l.Close())
	require.EqualError(t, listensAt(os.Getpid(), port), fmt.Sprintf("nothing listens on port %d yet", port))
}

func TestOverlay(t *testing.T) {
	got, err := overlay(`a = 1
b {
  c = "x" # stays
  d = [1]
}
k "one" {
  e = true
}
`, "base.hcl", []byte(`b {
  d = [2, 3]
  inner {
    f = "g"
  }
}
k "two" {
  e = false
}
a = 5
`))
	require.NoError(t, err)
	var file struct {
		A int `hcl:"a"`
		B struct {
			C     string `hcl:"c"`
			D     []int  `hcl:"d"`
			Inner struct {
				F string `hcl:"f"`
			} `hcl:"inner,block"`
		} `hcl:"b,block"`
		K []struct {
			Name string `hcl:"name,label"`
			E    bool   `hcl:"e"`
		} `hcl:"k,block"`
	}
	require.NoError(t, hclsimple.Decode("merged.hcl", []byte(got), nil, &file), got)
	require.Equal(t, 5, file.A)
	require.Equal(t, "x", file.B.C)
	require.Equal(t, []int{2, 3}, file.B.D)
	require.Equal(t, "g", file.B.Inner.F)
	require.Len(t, file.K, 2)
	_, err = overlay("", "base.hcl", []byte("a = "))
	require.ErrorContains(t, err, "the settings for base.hcl")
}

func TestDataDirectories(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	first, err := openDataDir("")
	require.NoError(t, err)
	second, err := openDataDir("")
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, filepath.Join(state, "remuda", "dev"), first.path)
	require.Equal(t, filepath.Join(state, "remuda", "dev-2"), second.path)
	_, err = openDataDir(second.path)
	require.ErrorIs(t, err, errInUse)
	require.NoError(t, first.Close())
	again, err := openDataDir("")
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, first.path, again.path)

	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o600))
	_, err = openDataDir(foreign)
	require.ErrorContains(t, err, "not from remuda dev: give an empty or new one")
	require.FileExists(t, filepath.Join(foreign, "thesis.tex"))
}

func TestWipeKeepsModelsOnly(t *testing.T) {
	d, err := openDataDir(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, d.wipe())
	for _, name := range []string{"nomad/x", "nomad-2/x", "nomad-server/x", "controller/x", "controller-2/x", "autoscaler-2/x", "consul/x", "logs/x", "config/x", "models/x"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(d.join(name)), 0o700))
		require.NoError(t, os.WriteFile(d.join(name), nil, 0o600))
	}
	require.NoError(t, d.wipe())
	left, err := filepath.Glob(d.join("*", "x"))
	require.NoError(t, err)
	require.Equal(t, []string{d.join("models", "x")}, left)
}

// process starts a program that ends with the test at the latest.
func process(t *testing.T, env string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, err = out.Read(make([]byte, 8)) // it has begun once it prints
	require.NoError(t, err)
	return cmd
}

func alive(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	_, err := cohort.Lookup(cmd.Process.Pid)
	return err == nil
}

func TestSweepEndsWhatBelongsToTheDirectory(t *testing.T) {
	d, err := openDataDir(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	const loop = "echo ready; while :; do sleep 0.1; done"
	mine := process(t, envMarker+"="+d.path, "sh", "-c", loop)
	task := process(t, "NOMAD_ALLOC_DIR="+d.path+"/nomad/alloc/1/alloc", "sh", "-c", loop)
	stubborn := process(t, envMarker+"="+d.path, "sh", "-c", "trap '' TERM; "+loop)
	others := process(t, envMarker+"="+d.path+"-2", "sh", "-c", loop)
	n, err := d.sweep(200 * time.Millisecond)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 3) // and a sleep or two
	require.False(t, alive(t, mine))
	require.False(t, alive(t, task))
	require.False(t, alive(t, stubborn))
	require.True(t, alive(t, others))
}

func TestUnescapeMount(t *testing.T) {
	require.Equal(t, "/a b\tc\nd\\e", unescapeMount(`/a\040b\011c\012d\134e`))
}

// report collects what a daemon's supervisor says.
type report struct {
	mu    sync.Mutex
	lines []string
	said  chan struct{}
}

func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
	r.said <- struct{}{}
}

func newDaemon(t *testing.T, script string) (*daemon, *report) {
	t.Helper()
	r := &report{said: make(chan struct{}, 100)}
	return &daemon{name: "thing", path: "/bin/sh", args: []string{"-c", script}, env: os.Environ(),
		log: filepath.Join(t.TempDir(), "thing.log"), say: r.say}, r
}

func TestDaemonIsStartedAgain(t *testing.T) {
	d, r := newDaemon(t, "echo life >> "+filepath.Join(t.TempDir(), "lives")+"; exec sleep 60")
	require.NoError(t, d.start())
	defer d.stop()
	require.NoError(t, d.died())
	first := d.pid()
	require.NoError(t, unix.Kill(first, unix.SIGKILL))
	<-r.said
	require.Contains(t, r.lines[0], "thing ended (signal: killed): starting it again; its log is "+d.log)
	require.Eventually(t, func() bool { now := d.pid(); return now != first && now != 0 }, time.Minute, time.Millisecond)
	second := d.pid()
	require.NoError(t, unix.Kill(second, 0))
	d.stop()
	require.ErrorIs(t, unix.Kill(second, 0), unix.ESRCH, "nothing runs after stop")
	d.stop() // again
}

func TestDaemonIsKeptDown(t *testing.T) {
	d, r := newDaemon(t, "exec sleep 60")
	require.NoError(t, d.start())
	defer d.stop()
	require.ErrorContains(t, d.again(), "thing was not ended")
	for _, sig := range []os.Signal{unix.SIGKILL, unix.SIGTERM} {
		first := d.pid()
		require.NoError(t, d.end(sig))
		require.Zero(t, d.pid())
		require.ErrorIs(t, unix.Kill(first, 0), unix.ESRCH)
		require.NoError(t, d.again())
		require.NotZero(t, d.pid())
		require.NotEqual(t, first, d.pid())
	}
	require.NoError(t, d.end(unix.SIGKILL))
	d.stop()
	require.Empty(t, r.lines, "it ended as it was told to")
}

func TestDaemonThatDoesNotStart(t *testing.T) {
	d, r := newDaemon(t, "for i in 1 2 3 4 5; do echo line $i; done; exit 3")
	require.NoError(t, d.start())
	defer d.stop()
	<-r.said
	err := d.died()
	require.ErrorContains(t, err, "thing ended (exit status 3)")
	require.ErrorContains(t, err, "line 5")

	d, _ = newDaemon(t, "")
	d.path = "/does/not/exist"
	require.ErrorContains(t, d.start(), "start thing")
	d.stop()
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte("1\n2\n3\n"), 0o600))
	require.Equal(t, "2\n3\n", tail(path, 2))
	require.Equal(t, "1\n2\n3\n", tail(path, 9))
	require.Contains(t, tail(path+"x", 1), "no such file")
}

// fakeTool writes a program that prints a version.
func fakeTool(t *testing.T, dir, name, prints string) {
	t.Helper()
	script := "#!/bin/sh\n" + prints + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700))
}

func TestToolsAreTakenWhereTheyAreNewEnough(t *testing.T) {
	onPath, built := t.TempDir(), t.TempDir()
	t.Setenv("PATH", onPath+":/bin:/usr/bin")
	want := tool{name: "horse", minimum: "1.10.0", why: "older ones bite"}
	find := func() (tool, error) { return want.find(t.Context(), []string{built}) }
	_, err := find()
	require.EqualError(t, err, "no horse of version 1.10.0 or newer (older ones bite) on PATH: install it")

	fakeTool(t, onPath, "horse", "echo Horse v1.9.9")
	_, err = find()
	require.ErrorContains(t, err, "looked at "+filepath.Join(onPath, "horse")+" is version 1.9.9")

	fakeTool(t, built, "horse", "echo Horse v1.10.0-dev")
	got, err := find()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(built, "horse"), got.path, "the one on PATH is too old")

	fakeTool(t, onPath, "horse", "echo horse version is 2.0.1")
	got, err = find()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(onPath, "horse"), got.path)
	require.Equal(t, "2.0.1", got.version)

	fakeTool(t, onPath, "horse", "echo cannot load libhay.so >&2; exit 127")
	require.NoError(t, os.Remove(filepath.Join(built, "horse")))
	_, err = find()
	require.ErrorContains(t, err, "names no version")
	require.ErrorContains(t, err, "libhay.so")
}

// TestConfigsAreValid also where the data directory's name is awkward.
func TestConfigsAreValid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a "quoted" ${name} %{if} dir`)
	d, err := openDataDir(dir)
	require.NoError(t, err)
	defer d.Close()
	require.NoError(t, d.wipe())
	ports, err := claimPorts(DefaultOptions().portNames())
	require.NoError(t, err)
	defer ports.Close()
	device := filepath.Join(t.TempDir(), "built-device")
	require.NoError(t, os.WriteFile(device, []byte("binary"), 0o700))
	opts := DefaultOptions()
	opts.Device, opts.Autoscaler, opts.Remuda = device, device, "/opt/remuda"
	c, err := New(opts)
	require.NoError(t, err)
	c.dir, c.ports = d, ports
	require.NoError(t, c.writeConfigs())
	files, err := filepath.Glob(filepath.Join(d.join("config"), "*.hcl"))
	require.NoError(t, err)
	require.Len(t, files, 5)
	for _, f := range files {
		_, diags := hclparse.NewParser().ParseHCLFile(f)
		require.False(t, diags.HasErrors(), "%s: %s", f, diags)
	}
	server, err := agent.LoadFile(d.join("config", "controller.hcl"), agent.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, d.join("controller"), server.DataDir)
	require.False(t, server.ACL.Enabled)
	require.Equal(t, 10*time.Second, server.Reconcile.MinAge)
	require.Equal(t, planner.ProfileSimulation, server.Reconcile.Profile)
	front, err := gateway.LoadFile(d.join("config", "gateway.hcl"), gateway.DefaultConfig())
	require.NoError(t, err)
	require.Equal(t, []string{"http://" + server.HTTP.Bind}, front.Controller.Addresses)
	require.Equal(t, ports.addr("gateway-operators"), front.OperatorListen)
	plugin, err := os.ReadFile(d.join("plugins", devicePlugin))
	require.NoError(t, err)
	require.Equal(t, "binary", string(plugin))

	for _, name := range []string{"CONSUL_HTTP_SSL", "NOMAD_CACERT", "REMUDA_CLIENT_CERT", "REMUDA_COHORT"} {
		t.Setenv(name, "of another cluster")
	}
	env := c.environment()
	require.NotContains(t, strings.Join(env, "\n"), "of another cluster")
	require.Contains(t, env, envMarker+"="+d.path)
	require.Contains(t, env, "CONSUL_HTTP_ADDR="+ports.addr("consul-http"))
	require.Contains(t, strings.Join(env, "\n"), "\nPATH=/opt:")
}

// TestGPUsAreThoseOfThePlugin: each of several clusters shares the memory of the GPUs that
// its own device plugin simulates.
func TestGPUsAreThoseOfThePlugin(t *testing.T) {
	seen := map[string]bool{}
	for i, base := range []int{firstBlock, firstBlock, firstBlock + blockSize, firstBlock + blockSize} {
		node := i % 2
		opts := DefaultOptions()
		opts.Device, opts.Remuda, opts.Seats, opts.Nodes = "/opt/device", "/opt/remuda", 3, 2
		c := &Cluster{opts: opts, dir: &dataDir{path: t.TempDir()}, ports: &portBlock{base: base, ports: map[string]int{}}}
		of := func(field string) string {
			m := regexp.MustCompile(field + ` += "?([^"\n]*)"?\n`).FindStringSubmatch(c.nomadClientConfig(node))
			require.NotNil(t, m, field)
			return m[1]
		}
		require.Equal(t, "3", of("seats"))
		var simulated []string
		for i := range c.opts.GPUs {
			simulated = append(simulated, gpu.UUID(of("seed"), i))
		}
		require.Equal(t, strconv.Itoa(c.opts.GPUs), of("count"))
		require.Equal(t, simulated, c.gpus(node))
		for _, uuid := range simulated {
			require.False(t, seen[uuid], "GPU %s is on two nodes", uuid)
			seen[uuid] = true
		}
	}
}

// models makes a cluster with the models of its options, as it would apply them.
func models(t *testing.T, change func(*Options)) (*Cluster, []state.Model) {
	t.Helper()
	opts := DefaultOptions()
	opts.Remuda = "/opt/bin/remuda"
	change(&opts)
	c, err := New(opts)
	require.NoError(t, err)
	c.ports = &portBlock{ports: map[string]int{"consul-http": 8555}}
	c.source, c.models, err = loadModels(c.opts)
	require.NoError(t, err)
	applied, err := c.source.Models(nil)
	require.NoError(t, err)
	return c, applied
}

func TestModelsOfTheOptions(t *testing.T) {
	t.Run("demo", func(t *testing.T) {
		c, m := models(t, func(*Options) {})
		require.Equal(t, "demo", m[0].Name)
		require.True(t, m[0].Failover)
		require.Equal(t, jobs.Failover, m[0].Variants[0].Job)
		require.Equal(t, map[string]string{"weights": "256MiB"}, m[0].Variants[0].Vars)
		require.Equal(t, []string{"demo"}, c.wanted())
	})
	t.Run("single", func(t *testing.T) {
		_, m := models(t, func(o *Options) { o.Single = true })
		require.Equal(t, "demo", m[0].Name)
		require.False(t, m[0].Failover)
		require.Equal(t, jobs.Demo, m[0].Variants[0].Job)
	})
	t.Run("ollama", func(t *testing.T) {
		_, m := models(t, func(o *Options) { o.Engine = EngineOllama })
		require.Equal(t, "tiny", m[0].Name)
		require.Empty(t, m[0].Variants[0].Vars)
	})
	t.Run("gguf", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "My Model.gguf")
		require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
		_, m := models(t, func(o *Options) { o.Engine, o.GGUF = EngineOllama, path })
		require.Equal(t, "my-model", m[0].Name)
		require.Equal(t, path, m[0].Variants[0].Vars["gguf"])
		require.Equal(t, placement.ReplicaSize(4096), m[0].Variants[0].Memory)
	})
	t.Run("model file", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "j.hcl"), []byte("variable \"consul\" {\n  default = \"\"\n}\nvariable \"remuda\" {\n  default = \"\"\n}\njob \"j\" {}\n"), 0o600))
		path := filepath.Join(dir, "m.hcl")
		require.NoError(t, os.WriteFile(path, []byte(`
model "asleep" {
  replicas = 0
  variant "v" {
    weights = "1GiB"
    job     = "j.hcl"
  }
}
model "awake" {
  variant "v" {
    weights = "1GiB"
    job     = "j.hcl"
    vars    = { consul = "mine:1" }
  }
}
`), 0o600))
		c, m := models(t, func(o *Options) { o.Model = path })
		require.Len(t, m, 2)
		require.Empty(t, m[0].Variants[0].Vars)
		require.Equal(t, map[string]string{"consul": "mine:1"}, m[1].Variants[0].Vars)
		require.Equal(t, []string{"awake"}, c.wanted())
		require.False(t, c.anyVariant(func(v state.Variant) bool { return v.Engine == EngineOllama }))
	})
	_, _, err := loadModels(Options{Model: filepath.Join(t.TempDir(), "none.hcl")})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "-model")
}

func TestModelName(t *testing.T) {
	for path, want := range map[string]string{
		"/models/Llama-3.2_1B.gguf": "llama-3.2_1b", "My Model.gguf": "my-model", "x": "x",
	} {
		require.Equal(t, want, modelName(path))
	}
}

func TestPlacementFailureSaysWhy(t *testing.T) {
	why := placementFailure(&nomadapi.Evaluation{FailedTGAllocs: map[string]*nomadapi.AllocationMetric{"replica": {
		NodesEvaluated: 3, ConstraintFiltered: map[string]int{"${device.ids} = x": 2}, DimensionExhausted: map[string]int{"memory": 1},
	}}})
	require.Contains(t, why, `group "replica": 3 nodes looked at`)
	require.Contains(t, why, `constraint "${device.ids} = x" excludes 2 nodes`)
	require.Contains(t, why, "memory is exhausted on 1 nodes")
	require.Empty(t, placementFailure(&nomadapi.Evaluation{}))
}

func TestWaitFor(t *testing.T) {
	var out bytes.Buffer
	p := newPrinter(&out)
	calls := 0
	require.NoError(t, p.waitFor(t.Context(), time.Minute, func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	require.Equal(t, 3, calls)
	err := p.waitFor(t.Context(), 10*time.Millisecond, func(context.Context) error { return errors.New("the door is locked") })
	require.EqualError(t, err, "not ready within 10ms: the door is locked")
	hopeless := errors.New("there is no door")
	calls = 0
	err = p.waitFor(t.Context(), time.Minute, func(context.Context) error { calls++; return permanent{hopeless} })
	require.ErrorIs(t, err, hopeless)
	require.Equal(t, 1, calls)
}

// TestLongStepPrintsProgress: every two seconds, and not after its end.
func TestLongStepPrintsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newPrinter(&out)
		end := p.begin("tools")
		p.now("downloading %s", "nomad")
		time.Sleep(2100 * time.Millisecond)
		p.now("downloading consul")
		time.Sleep(2 * time.Second)
		end()
		time.Sleep(time.Minute)
		require.Equal(t, "  tools       …    2 s  downloading nomad\n  tools       …    4 s  downloading consul\n", out.String())
		end = p.begin("consul")
		time.Sleep(time.Second)
		end()
		require.NotContains(t, out.String(), "consul      …", "a short step prints nothing")
	})
}

func TestFailedStartReportsTheStep(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	t.Setenv("REMUDA_TOOLS", empty)
	t.Setenv("XDG_CACHE_HOME", empty)
	t.Chdir(empty)
	device := filepath.Join(empty, "remuda-device")
	require.NoError(t, os.WriteFile(device, nil, 0o700))
	opts := DefaultOptions()
	opts.Releases = ""
	var out bytes.Buffer
	opts.Out, opts.DataDir, opts.Remuda, opts.Device, opts.Autoscaler = &out, filepath.Join(empty, "data"), filepath.Join(empty, "bin", "remuda"), device, device
	c, err := New(opts)
	require.NoError(t, err)
	err = c.Run(t.Context(), nil)
	require.ErrorContains(t, err, `step "tools" failed`)
	for _, name := range []string{"nomad", "consul", "nomad-autoscaler"} {
		require.ErrorContains(t, err, "no "+name+" of version")
	}
	d, err := openDataDir(opts.DataDir)
	require.NoError(t, err, "the directory is free again")
	require.NoError(t, d.Close())
}
