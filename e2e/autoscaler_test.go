//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net"
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
	"remuda/jobs"
)

// scaled is a cluster of remuda dev whose nomad-autoscaler scales the model "m". It has two
// variants, of which "dear" costs five times what "cheap" does.
type scaled struct {
	*fleet
	strategy string
}

// newScaled starts one with a check of a strategy, whose keys are given.
func newScaled(t *testing.T, strategy, keys string) *scaled {
	t.Helper()
	dir := dataDir(t)
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	write("demo.nomad.hcl", jobs.Demo)
	variant := func(name string, cost int) string {
		return fmt.Sprintf(`
  variant %q {
    gpu {
      count = 1
    }
    weights = "32MiB"
    cost    = %d
    slots   = 4
    job     = "demo.nomad.hcl"
    vars    = { weights = "32MiB" }
  }
`, name, cost)
	}
	model := write("m.model.hcl", "model \"m\" {\n  min = 0\n  max = 6\n  replicas = 1\n  keep_warm = 2\n"+variant("dear", 5)+variant("cheap", 1)+"}\n")
	policy := write("m.policy.hcl", fmt.Sprintf(`scaling "m" {
  enabled = true
  min     = 0
  max     = 6
  policy {
    cooldown            = "1s"
    evaluation_interval = "2s"
    check "c" {
      source = "remuda"
      query  = "replicas/m"
      strategy %q {
        model = "m"
        %s
      }
    }
    target "remuda" {
      model = "m"
    }
  }
}
`, strategy, keys))
	d := newDev(t, "-model", model, "-policy", policy, "-gpus", "4")
	return &scaled{&fleet{t: t, dir: dir, dev: d, api: d.controller}, strategy}
}

func (s *scaled) use(t *testing.T) { s.fleet.use(t); s.dev.t = t }

// decisions is the file of the strategy's decisions.
func (s *scaled) decisionsFile() string {
	return filepath.Join(s.info.DataDir, "autoscaler", strings.TrimPrefix(s.strategy, "remuda-")+".decisions.json")
}

// decides waits for more decisions of the cluster's autoscaler.
func (s *scaled) decides(more int) {
	s.t.Helper()
	grows(s.t, s.decisionsFile(), more)
}

// grows waits until a file has more lines.
func grows(t testing.TB, path string, more int) {
	t.Helper()
	want := lines(t, path) + more
	eventually(t, 90*time.Second, "lines in "+path, func() error {
		if got := lines(t, path); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

func (s *scaled) status() (api.ModelStatus, error) {
	st, _, err := s.api.Model(s.t.Context(), "m", api.QueryOptions{})
	return st, err
}

// awaits waits until the replicas by variant are as they should be.
func (s *scaled) awaits(limit time.Duration, what string, ok func(cheap, dear api.Counts) bool) {
	s.t.Helper()
	eventually(s.t, limit, what, func() error {
		st, err := s.status()
		if cheap, dear := st.VariantCounts["cheap"], st.VariantCounts["dear"]; err == nil && !ok(cheap, dear) {
			err = fmt.Errorf("cheap %+v, dear %+v of %d wanted: %s", cheap, dear, st.Model.Target, st.Why)
		}
		return err
	})
}

// TestAutoscaler: one model, real nomad-autoscaler, Nomad and Consul. The parts run in order
// on one cluster.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	s := newScaled(t, "remuda-capacity", `hold          = "15s"
        scale_to_zero = "true"
        idle_after    = "20s"`)
	inTurn(t, s, s.use, []part[*scaled]{
		{"load raises the cheapest variant", loadRaises},
		{"what stops changes nothing that runs", stopsChangeNothing},
		{"falling load goes through WARM", fallsThroughWarm},
		{"idle means zero, and a request comes back", idleAndBack},
		{"every decision can be replayed", replayed},
	})
}

// It starts on one replica of the cheapest variant; twelve clients fill three with four
// slots each to the last, so that more come.
func loadRaises(t *testing.T, s *scaled) {
	s.awaits(time.Minute, "one replica of cheap", func(cheap, dear api.Counts) bool {
		return cheap.Hot == 1 && dear == api.Counts{}
	})
	l := s.load("m", 12)
	s.awaits(3*time.Minute, "four replicas of cheap", func(cheap, dear api.Counts) bool {
		return cheap.Hot >= 4 && dear == api.Counts{}
	})
	l.none()
	t.Logf("remuda model status m:\n%s", s.remuda("model", "status", "m"))
	reasons := ""
	list, _, err := s.api.Decisions(t.Context(), api.DecisionFilter{Model: "m", Limit: 100}, api.QueryOptions{})
	require.NoError(t, err)
	for _, d := range list {
		if d.Kind == "scale" {
			reasons += d.Time.Format(time.TimeOnly) + " " + d.Reason + "\n"
		}
	}
	require.Contains(t, reasons, "the autoscaler asked for the replicas cheap=2, dear=0")
	require.Contains(t, reasons, "cheap from 1 to 2", "the reason of the strategy")
	t.Logf("scaled:\n%s", reasons)
}

// Each part of the control plane is frozen for a while under load, and nomad-autoscaler is
// killed: no request fails, no replica comes or goes by that, and decisions go on afterwards.
func stopsChangeNothing(t *testing.T, s *scaled) {
	l := s.load("m", 6)
	s.decides(3)
	for _, what := range []string{"controller", "consul", "apm", "strategy", "target", "autoscaler"} {
		var pid int
		switch what {
		case "apm", "target", "strategy":
			pid = s.face(what)
		default:
			pid = s.pid(what)
		}
		before, err := s.jobsOf("m")
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
		t.Cleanup(resume)
		l.flows(60) // twelve seconds at least: five evaluations
		during, err := s.jobsOf("m")
		require.NoError(t, err)
		require.Subset(t, during, before, "%s is frozen, and a replica went", what)
		resume()
		s.decides(3)
		t.Logf("%s was frozen with %d replicas, and decisions go on", what, len(before))
	}
	kill9(t, s.pid("autoscaler"))
	s.decides(3)
	l.none()
}

// face is the process of a plugin.
func (s *scaled) face(name string) int {
	s.t.Helper()
	var found int
	eventually(s.t, 30*time.Second, "the plugin "+name, func() error {
		for _, child := range childrenOf(s.t, s.pid("autoscaler")) {
			raw, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/cmdline")
			args := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
			if len(args) > 1 && args[1] == name && (name != "strategy" || args[2] == s.strategy) {
				found = child
				return nil
			}
		}
		return fmt.Errorf("nomad-autoscaler has no such process")
	})
	return found
}

// keep_warm is 2: what is too much goes WARM as long as fewer are.
func fallsThroughWarm(t *testing.T, s *scaled) {
	l := s.load("m", 1)
	s.awaits(5*time.Minute, "one HOT and two WARM replicas", func(cheap, dear api.Counts) bool {
		return cheap == api.Counts{Hot: 1, Warm: 2} && dear == api.Counts{}
	})
	l.none()
}

func idleAndBack(t *testing.T, s *scaled) {
	s.awaits(3*time.Minute, "no HOT replica", func(cheap, dear api.Counts) bool {
		return cheap.Hot+cheap.Starting+dear.Hot+dear.Starting == 0
	})
	st, err := s.status()
	require.NoError(t, err)
	require.Zero(t, st.Model.Target)
	s.decides(3)
	require.Equal(t, "", streamed(s.fleet, "m", "are you there?"))
	st, err = s.status()
	require.NoError(t, err)
	require.Equal(t, 1, st.Counts.Hot)
	s.decides(2)
	require.Equal(t, "", streamed(s.fleet, "m", "and now?"), "the policy does not put it to sleep at once")
}

// replays decides everything in the decisions file again and returns a copy of it: the
// autoscaler goes on writing it.
func (s *scaled) replays() (path string) {
	t := s.t
	t.Helper()
	raw, err := os.ReadFile(s.decisionsFile())
	require.NoError(t, err)
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	path = filepath.Join(s.info.DataDir, "decisions.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	out, err := exec.CommandContext(t.Context(), binary(t, "remuda-autoscaler"), "replay", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, fmt.Sprintf("%d decisions are the same again, 0 are not\n", bytes.Count(raw, []byte("\n"))), string(out))
	return path
}

func replayed(t *testing.T, s *scaled) {
	path := s.replays()
	inputs, err := exec.CommandContext(t.Context(), binary(t, "remuda-autoscaler"), "input", path).Output()
	require.NoError(t, err)
	explain := exec.CommandContext(t.Context(), binary(t, "remuda"), "capacity", "explain", "-json", "-")
	explain.Stdin = bytes.NewReader(inputs)
	answers, err := explain.Output()
	require.NoError(t, err)
	require.Equal(t, lines(t, path), bytes.Count(inputs, []byte("\n")))
	require.Equal(t, lines(t, path), bytes.Count(answers, []byte("\n")))
}

// TestPolicies: each policy of jobs/ scales the demo model up, as remuda dev runs it.
// TestAutoscaler has remuda-capacity.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hpa", "utilization", "predictive"} {
		t.Run(name, func(t *testing.T) {
			d := newDev(t, "-single", "-policy", name)
			s := &scaled{&fleet{t: t, dev: d, api: d.controller}, "remuda-" + name}
			require.Contains(t, d.out.String(), "remuda-"+name+" scales demo")
			l := s.load("demo", 40)
			eventually(t, 2*time.Minute, "three HOT replicas", func() error {
				st, _, err := s.api.Model(t.Context(), "demo", api.QueryOptions{})
				if err == nil && st.Counts.Hot < 3 {
					err = fmt.Errorf("%+v of %d wanted: %s", st.Counts, st.Model.Target, st.Why)
				}
				return err
			})
			l.none()
			s.replays()
			metrics, err := fetch("http://" + d.strategyMetrics())
			require.NoError(t, err)
			require.Contains(t, metrics, `remuda_autoscaler_decisions_total{direction="up",model="demo",strategy="remuda-`+name+`"}`)
		})
	}
}

var listens = regexp.MustCompile(`metrics_listen = "([^"]+)"`)

// strategyMetrics is the address of the strategy's own metrics.
func (d *dev) strategyMetrics() string {
	d.t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.info.DataDir, "config", "autoscaler.hcl"))
	require.NoError(d.t, err)
	at := listens.FindSubmatch(raw)
	require.NotNil(d.t, at, "%s", raw)
	return string(at[1]) + "/metrics"
}

// TestTwoAutoscalers: two agents decide about the same model. The strategy asks for exactly
// as many replicas as the clients need, so that a decision that is carried out twice shows.
func TestTwoAutoscalers(t *testing.T) {
	t.Parallel()
	s := newScaled(t, "remuda-hpa", `form   = "replicate"
        metric = "running"
        target = "4"`)
	second := s.another()
	inTurn(t, s, s.use, []part[*scaled]{
		{"both believe that they lead", func(t *testing.T, s *scaled) { bothLead(t, s, second) }},
		{"one leads, is frozen and wakes up", func(t *testing.T, s *scaled) { leaderWakes(t, s, second) }},
	})
}

// bothLead: no lock of anybody can exclude that, as one that was frozen may go on with what
// it did.
func bothLead(t *testing.T, s *scaled, second *another) {
	l := s.load("m", 12)
	s.awaits(3*time.Minute, "three replicas of cheap", func(cheap, _ api.Counts) bool { return cheap.Hot == 3 })
	s.decides(5)
	require.Positive(t, lines(t, second.file), "the second one decides, too")
	l.none()
	s.grewOnce(3)
}

// leaderWakes: with nomad-autoscaler's own lock one of the two is idle, and takes over from
// the other while that is frozen.
func leaderWakes(t *testing.T, s *scaled, second *another) {
	const block = "high_availability {\n  enabled    = true\n  lock_ttl   = \"10s\"\n  lock_delay = \"1s\"\n}\n\nhttp {"
	s.rewrite("autoscaler", `http \{`, block)
	kill9(t, s.pid("autoscaler"))
	second.end()
	second.again(block)
	l := s.load("m", 12)
	files := []string{s.decisionsFile(), second.file}
	// decides tells which of the two does, once it is one of them alone.
	decides := func(limit time.Duration, want int) (leader int) {
		leader = -1
		eventually(t, limit, "one of the two alone to decide", func() error {
			var before [2]int
			for i, f := range files {
				before[i] = lines(t, f)
			}
			<-time.After(7 * time.Second) // three evaluations
			var did []int
			for i, f := range files {
				if lines(t, f) > before[i] {
					did = append(did, i)
				}
			}
			if len(did) != 1 || want >= 0 && did[0] != want {
				return fmt.Errorf("decisions of %v", did)
			}
			leader = did[0]
			return nil
		})
		return leader
	}
	leader := decides(2*time.Minute, -1)
	pid := second.cmd.Process.Pid
	if leader == 0 {
		pid = s.pid("autoscaler")
	}
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(resume)
	decides(2*time.Minute, 1-leader)
	more := s.load("m", 8)
	s.awaits(2*time.Minute, "five replicas of cheap", func(cheap, _ api.Counts) bool { return cheap.Hot == 5 })
	resume()
	// nomad-autoscaler 0.5 does not notice that it lost its lock: from here both act again.
	for _, f := range files {
		grows(t, f, 3)
	}
	s.grewOnce(5)
	l.none()
	more.none()
}

var sumOf = regexp.MustCompile(`\d+`)

// grewOnce requires that the model was scaled up step by step to a number, no step twice.
func (s *scaled) grewOnce(to int) {
	s.t.Helper()
	list, _, err := s.api.Decisions(s.t.Context(), api.DecisionFilter{Model: "m", Limit: 100}, api.QueryOptions{})
	require.NoError(s.t, err)
	var wanted []int
	for _, d := range list {
		if d.Kind != "scale" || d.Inputs["origin"] != "autoscaler" {
			continue
		}
		sum := 0
		for _, n := range sumOf.FindAllString(d.Inputs["asked"], -1) {
			v, err := strconv.Atoi(n)
			require.NoError(s.t, err, "%+v", d)
			sum += v
		}
		wanted = append(wanted, sum)
	}
	slices.Reverse(wanted)
	require.NotEmpty(s.t, wanted)
	require.True(s.t, slices.IsSorted(wanted), "growth went back and forth: %v", wanted)
	require.Len(s.t, slices.Compact(slices.Clone(wanted)), len(wanted), "the same decision twice: %v", wanted)
	require.Equal(s.t, to, wanted[len(wanted)-1], "not what the load asks for: %v", wanted)
}

// another is an agent that the test itself runs beside the cluster's.
type another struct {
	*plainProcess
	s    *scaled
	file string
}

// another starts one with the same policies and plugins, and a file of decisions of its own.
func (s *scaled) another() *another {
	s.t.Helper()
	a := &another{s: s, file: filepath.Join(s.dir, "second.decisions.json")}
	a.again("http {")
	return a
}

// again starts it with the cluster's configuration, and block in place of "http {".
func (a *another) again(block string) {
	t := a.s.t
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(a.s.info.DataDir, "config", "autoscaler.hcl"))
	require.NoError(t, err)
	text := string(raw)
	if !strings.Contains(text, block) {
		text = strings.Replace(text, "http {", block, 1)
	}
	_, port, err := net.SplitHostPort(freePortOn(t, "127.0.0.1"))
	require.NoError(t, err)
	text = regexp.MustCompile(`bind_port .*`).ReplaceAllString(text, "bind_port = "+port)
	text = regexp.MustCompile(`(?m)^ *metrics_listen .*$`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, a.s.decisionsFile(), a.file)
	config := filepath.Join(a.s.dir, "second.hcl")
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	a.plainProcess = plainStart(t, toolPath(t, "nomad-autoscaler"), "agent", "-config", config)
}

// lines counts the lines of a file that may not be there yet.
func lines(t testing.TB, path string) int {
	t.Helper()
	raw, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return bytes.Count(raw, []byte("\n"))
}
