//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/autoscaler-plugin/plugin"
	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/proclog"
	"remuda/jobs"
)

// plainProcess is a program that a test starts, ends and starts again.
type plainProcess struct {
	t    testing.TB
	path string
	args []string
	out  *proclog.Buffer
	cmd  *exec.Cmd
	done chan struct{}
}

// plainStart starts a program and ends it with the test.
func plainStart(t testing.TB, path string, args ...string) *plainProcess {
	t.Helper()
	p := &plainProcess{t: t, path: path, args: args, out: &proclog.Buffer{}}
	p.start()
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			printed := p.out.String()
			t.Logf("%s printed:\n%s", filepath.Base(path), printed[max(0, len(printed)-30_000):])
		}
	})
	return p
}

func (p *plainProcess) start() {
	p.t.Helper()
	p.done = make(chan struct{})
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = p.out, p.out, time.Second
	require.NoError(p.t, p.cmd.Start())
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(p.cmd, p.done)
}

func (p *plainProcess) end() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		p.t.Errorf("%s did not end within 30 s of SIGTERM", p.path)
	}
}

// running is nil while the process is there.
func (p *plainProcess) running() error {
	select {
	case <-p.done:
		p.t.Fatalf("%s ended:\n%s", p.path, p.out)
		return nil
	default:
		return nil
	}
}

// plainBlock is a plugin block of nomad-autoscaler that runs remuda-autoscaler.
type plainBlock struct {
	kind, name string
	args       []string
	config     map[string]string
}

func plainStrategy(name string, config map[string]string) plainBlock {
	return plainBlock{kind: "strategy", name: name, args: []string{"strategy", name}, config: config}
}

func (b plainBlock) hcl() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %q {\n  driver = \"remuda-autoscaler\"\n  args   = [", b.kind, b.name)
	for _, a := range b.args {
		fmt.Fprintf(&s, "%q, ", a)
	}
	s.WriteString("]\n  config = {\n")
	for _, k := range slices.Sorted(maps.Keys(b.config)) {
		fmt.Fprintf(&s, "    %s = %q\n", k, b.config[k])
	}
	return s.String() + "  }\n}\n"
}

// plainInterval is how often policies are evaluated. nomad-autoscaler's target calls end
// after three quarters of it, which a busy machine may need.
const plainInterval = 2 * time.Second

// plainAutoscaler starts a nomad-autoscaler of its own on the cluster, with our plugin as
// the blocks say and a directory of policies; without any it reads those of Nomad's jobs
// alone. A cooldown of 0s would mean the default of five minutes, so that policies say 1s.
func plainAutoscaler(d *dev, dir string, policies map[string]string, blocks ...plainBlock) *plainProcess {
	d.t.Helper()
	for _, sub := range []string{"plugins", "policies"} {
		require.NoError(d.t, os.MkdirAll(filepath.Join(dir, sub), 0o700))
	}
	plainCopy(d.t, binary(d.t, "remuda-autoscaler"), filepath.Join(dir, "plugins", "remuda-autoscaler"))
	for name, text := range policies {
		require.NoError(d.t, os.WriteFile(filepath.Join(dir, "policies", name+".hcl"), []byte(text), 0o600))
	}
	host, port, err := net.SplitHostPort(loopback.Free(d.t))
	require.NoError(d.t, err)
	config := fmt.Sprintf(`log_level  = "debug"
plugin_dir = %q
http {
  bind_address = %q
  bind_port    = %s
}
nomad {
  address = %q
}
policy {
  dir = %q
  source "file" {
    enabled = %t
  }
}
`, filepath.Join(dir, "plugins"), host, port, d.info.Nomad, filepath.Join(dir, "policies"), len(policies) > 0)
	for _, b := range blocks {
		config += b.hcl()
	}
	path := filepath.Join(dir, "autoscaler.hcl")
	require.NoError(d.t, os.WriteFile(path, []byte(config), 0o600))
	return plainStart(d.t, toolPath(d.t, "nomad-autoscaler"), "agent", "-config", path)
}

// plainCopy puts a program elsewhere: nomad-autoscaler takes the name of the file for the
// driver's.
func plainCopy(t testing.TB, from, to string) {
	t.Helper()
	if os.Link(from, to) == nil {
		return
	}
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, errors.Join(err, out.Close()))
}

// plainDecisions reads a decisions file; none is there before the first decision.
func plainDecisions(t testing.TB, path string) []plugin.Record {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	defer f.Close()
	var all []plugin.Record
	for r, err := range plugin.Records(f) {
		if err != nil {
			break // the last line is being written
		}
		all = append(all, r)
	}
	return all
}

// plainReplay decides all decisions of a file again, by the plugin's own command. Nobody
// may write to the file meanwhile.
func plainReplay(t testing.TB, path string) {
	t.Helper()
	out, err := exec.Command(binary(t, "remuda-autoscaler"), "replay", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^[1-9][0-9]* decisions are the same, 0 differ\n$`, string(out))
}

// plainJob is a Nomad job as people write it who have no controller: one group of engines
// with a count, each registered in Consul by its shim.
func plainJob(d *dev, model, scaling string) string {
	return fmt.Sprintf(`job %[1]q {
  type = "service"

  group "engines" {
    count = 1
%[4]s
    network {
      port "engine" {}
      port "shim" {}
    }

    update {
      min_healthy_time  = "1s"
      healthy_deadline  = "2m"
      progress_deadline = "3m"
    }

    task "engine" {
      driver = "raw_exec"

      config {
        command = %[2]q
        args = [
          "engine", "-dialect", "sim", "-group", "%[1]s:plain:${NOMAD_ALLOC_ID}",
          "-engine-url", "http://${NOMAD_ADDR_engine}", "-listen", "${NOMAD_ADDR_shim}",
          "-consul", %[3]q, "-slots", "2", "-drain-timeout", "5s", "--",
          %[2]q, "sim", "-listen", "${NOMAD_ADDR_engine}", "-model", %[1]q, "-max-num-seqs", "2",
        ]
      }

      kill_timeout = "15s"

      service {
        name     = "%[1]s-shim"
        provider = "nomad"
        port     = "shim"

        check {
          type     = "http"
          path     = "/ready"
          interval = "1s"
          timeout  = "2s"
        }
      }

      resources {
        cpu    = 100
        memory = 128

        device "nvidia/gpu" {
          count = 1
        }
      }
    }
  }
}
`, model, binary(d.t, "remuda"), d.info.Consul, scaling)
}

func plainRegister(d *dev, text string) {
	d.t.Helper()
	job, err := d.nomad.Jobs().ParseHCL(text, true)
	require.NoError(d.t, err)
	_, _, err = d.nomad.Jobs().Register(job, nil)
	require.NoError(d.t, err)
}

// plainGroup is a plain job group that a policy scales.
type plainGroup struct {
	model, strategy string
	// config is the check's, beside the model.
	config map[string]string
	// inJob: the policy is the job's scaling block, not a file.
	inJob bool
}

// plainMax is up to how many engines a policy scales.
const plainMax = 3

// policy is the group's policy, as a file or as a scaling block for its job.
func (g *plainGroup) policy() string {
	config := fmt.Sprintf("        model = %q\n", g.model)
	for _, k := range slices.Sorted(maps.Keys(g.config)) {
		config += fmt.Sprintf("        %s = %q\n", k, g.config[k])
	}
	name, target := "", ""
	if !g.inJob {
		name = fmt.Sprintf(" %q", g.model)
		target = fmt.Sprintf("    target \"nomad-target\" {\n      Job   = %q\n      Group = \"engines\"\n    }\n", g.model)
	}
	return fmt.Sprintf(`scaling%s {
  enabled = true
  min     = 1
  max     = %d
  policy {
    cooldown            = "1s"
    evaluation_interval = %q
    check "load" {
      source = "remuda"
      query  = "replicas/%s"
      strategy %q {
%s      }
    }
%s  }
}
`, name, plainMax, plainInterval, g.model, g.strategy, config, target)
}

// plainCount returns how many engines a job group should have, and how many run.
func plainCount(d *dev, job string) (want, run int, err error) {
	st, _, err := d.nomad.Jobs().ScaleStatus(job, nil)
	if err != nil {
		return 0, 0, err
	}
	g, ok := st.TaskGroups["engines"]
	if !ok {
		return 0, 0, fmt.Errorf("job %s has no group engines", job)
	}
	return g.Desired, g.Running, nil
}

// pickPlain returns the URL of one of a model's engines.
func (d *dev) pickPlain(model string) func() (string, error) {
	return func() (string, error) {
		engines, err := d.passing(model)
		if err != nil || len(engines) == 0 {
			return "", cmp.Or(err, errors.New("there is no engine"))
		}
		e := engines[rand.IntN(len(engines))]
		return fmt.Sprintf("http://%s:%d", e.Address, e.Port), nil
	}
}

// TestOwnAutoscaler: nomad-autoscalers of the test's own on one cluster.
func TestOwnAutoscaler(t *testing.T) {
	t.Parallel()
	d := plainControlled(t, promModel, 4, promMax)
	inTurn(t, d, func(t *testing.T) { d.t = t }, []part[*dev]{
		{"plain job groups", plainJobs},
		{"Prometheus", throughPrometheus},
	})
}

// plainJobs scales ordinary Nomad job groups with each of the strategies, through
// nomad-autoscaler's own target, without our controller and gateway.
func plainJobs(t *testing.T, d *dev) {
	dir := dataDir(t)
	groups := []*plainGroup{
		{model: "by-capacity", strategy: "remuda-capacity", config: map[string]string{"hold": "10s"}, inJob: true},
		{model: "by-hpa", strategy: "remuda-hpa", config: map[string]string{
			"metric": "running", "target": "1", "behavior": `{"scale_down":{"stabilization_window_seconds":5}}`}},
		{model: "by-utilization", strategy: "remuda-utilization", config: map[string]string{"usage_window": "1m"}},
	}
	policies, blocks := map[string]string{}, []plainBlock{}
	where := map[string]string{"controller": "none", "consul": d.info.Consul, "scrape_interval": "1s"}
	blocks = append(blocks, plainBlock{kind: "apm", name: "remuda", args: []string{"apm"}, config: where})
	decisions := func(g *plainGroup) string { return filepath.Join(dir, g.strategy+".json") }
	for _, g := range groups {
		scaling := ""
		if g.inJob {
			scaling = g.policy()
		} else {
			policies[g.model] = g.policy()
		}
		plainRegister(d, plainJob(d, g.model, scaling))
		config := maps.Clone(where)
		config["decisions"], config["state_dir"] = decisions(g), filepath.Join(dir, "state")
		blocks = append(blocks, plainStrategy(g.strategy, config))
	}
	for _, g := range groups {
		d.engine(g.model)
	}
	a := plainAutoscaler(d, dir, policies, blocks...)

	var loads []*load
	for _, g := range groups {
		// A plain job has nothing that keeps requests from an engine that drains.
		loads = append(loads, startLoad(t, g.model, 6, 60, d.pickPlain(g.model)))
	}
	begin := time.Now()
	for _, g := range groups {
		eventually(t, 2*time.Minute, g.strategy+" to scale up", plainHas(d, g.model, func(n int) bool { return n == plainMax }))
		t.Logf("%s: %d engines after %s", g.strategy, plainMax, time.Since(begin).Round(time.Second))
	}
	for _, l := range loads {
		l.end()
	}
	begin = time.Now()
	for _, g := range groups {
		eventually(t, 5*time.Minute, g.strategy+" to scale down", plainHas(d, g.model, func(n int) bool { return n == 1 }))
		t.Logf("%s: one engine after %s", g.strategy, time.Since(begin).Round(time.Second))
	}
	require.NoError(t, a.running())
	a.end()
	for _, g := range groups {
		last := plainDecisions(t, decisions(g))
		require.NotEmpty(t, last)
		require.False(t, last[len(last)-1].Call.Snapshot.Controlled)
		plainReplay(t, decisions(g))
		_, _, err := d.nomad.Jobs().Deregister(g.model, false, nil)
		require.NoError(t, err)
	}
}

// plainHas tells whether a job group wants and has as many engines as asked for, all of
// them in Consul.
func plainHas(d *dev, job string, enough func(int) bool) func() error {
	return func() error {
		want, run, err := plainCount(d, job)
		if err != nil {
			return err
		}
		engines, err := d.passing(job)
		if err == nil && (!enough(want) || run != want || len(engines) != want) {
			err = fmt.Errorf("the group wants %d, %d run and %d are in Consul", want, run, len(engines))
		}
		return err
	}
}

// plainModel is a model file whose replicas are single engines on the simulator.
func plainModel(name string, replicas, slots, most int) string {
	return fmt.Sprintf(`model %q {
  min      = 0
  max      = %d
  replicas = %d

  # A part of the load goes past the gateways: engines ask for no key then.
  pass_authorization = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = %d
    job     = "demo.nomad.hcl"
    vars    = { weights = "32MiB" }
  }
}
`, name, most, replicas, slots)
}

// plainControlled starts a cluster with one model of ours, of which one replica runs.
func plainControlled(t *testing.T, model string, slots, most int) *dev {
	t.Helper()
	dir := dataDir(t)
	path := filepath.Join(dir, model+".model.hcl")
	require.NoError(t, os.WriteFile(path, []byte(plainModel(model, 1, slots, most)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "demo.nomad.hcl"), []byte(jobs.Demo), 0o600))
	d := newDev(t, func(o *devcluster.Options) { o.Model, o.GPUs, o.Seats = path, 4, 4 })
	eventually(t, time.Minute, "one replica to serve", func() error {
		st, err := plainStatus(d, model)
		if err == nil && (st.Counts.Hot != 1 || len(st.Replicas) != 1) {
			err = fmt.Errorf("%+v", st.Counts)
		}
		return err
	})
	return d
}

func plainStatus(d *dev, model string) (api.ModelStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, _, err := d.controller.Model(ctx, model, api.QueryOptions{})
	return st, err
}

// plainGrown waits until a model has at least so many replicas that serve.
func plainGrown(d *dev, a *plainProcess, model string, least int) {
	d.t.Helper()
	eventually(d.t, 2*time.Minute, fmt.Sprintf("%d replicas of %s", least, model), func() error {
		if err := a.running(); err != nil {
			return err
		}
		st, err := plainStatus(d, model)
		if err == nil && st.Counts.Hot < least {
			err = fmt.Errorf("%+v, wanted are %d", st.Counts, st.Model.Target)
		}
		return err
	})
}

// plainPolicy is a policy file for a model of the controller's, with checks.
func plainPolicy(model string, least, most int, checks string) string {
	return fmt.Sprintf(`scaling %q {
  enabled = true
  min     = %d
  max     = %d
  policy {
    cooldown            = "1s"
    evaluation_interval = %q
%s
    target "remuda" {
      model = %q
    }
  }
}
`, model, least, most, plainInterval, checks, model)
}
