//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
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
	"remuda/internal/testkit/long"
	"remuda/jobs"
)

// scaled is a cluster of remuda dev whose nomad-autoscaler scales the model "m". It has two
// variants, of which "dear" costs five times what "cheap" does.
type scaled struct {
	*fleet
	strategy string
}

// newScaled starts one with a check of a strategy, whose keys are given, and that many
// nomad-autoscalers.
func newScaled(t *testing.T, autoscalers int, strategy, keys string) *scaled {
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
    evaluation_interval = %q
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
`, evaluation(), strategy, keys))
	d := newDev(t, func(o *devcluster.Options) {
		o.Model, o.Policy, o.GPUs, o.NoAutoscaler, o.Autoscalers = model, policy, 4, false, autoscalers
	})
	return &scaled{&fleet{t: t, dir: dir, dev: d, api: d.controller}, strategy}
}

// evaluation is how often policies are evaluated.
func evaluation() string { return fmt.Sprintf("%ds", long.Pick(1, 2)) }

func (s *scaled) use(t *testing.T) { s.fleet.use(t); s.dev.t = t }

// decisionsFile is the file of the strategy's decisions of one of the autoscalers.
func (s *scaled) decisionsFile(autoscaler string) string {
	return filepath.Join(s.info.DataDir, autoscaler, strings.TrimPrefix(s.strategy, "remuda-")+".decisions.json")
}

// decides waits for more decisions of the cluster's autoscaler.
func (s *scaled) decides(more int) {
	s.t.Helper()
	grows(s.t, s.decisionsFile("autoscaler"), more)
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
			err = fmt.Errorf("cheap %+v, dear %+v of %d wanted: %s", cheap, dear, st.Model.Target, st.StatusDescription)
		}
		return err
	})
}

// TestAutoscaler: one model, real nomad-autoscaler, Nomad and Consul. The parts run in order
// on one cluster.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	s := newScaled(t, 1, "remuda-capacity", fmt.Sprintf(`hold          = "%ds"
        scale_to_zero = "true"
        idle_after    = "%ds"`, long.Pick(6, 15), long.Pick(10, 20)))
	inTurn(t, s, s.use, []part[*scaled]{
		{"load raises the cheapest variant", loadRaises},
		{"what stops changes nothing that runs", stopsChangeNothing},
		{"falling load goes through WARM", fallsThroughWarm},
		{"idle means zero, and a request comes back", idleAndBack},
		{"what it may not do it does not ask for", mayNot},
		{"every decision can be replayed", replayed},
	})
}

// It starts on one replica of the cheapest variant; twelve clients fill three with four
// slots each to the last, so that more come.
func loadRaises(t *testing.T, s *scaled) {
	s.awaits(time.Minute, "one replica of cheap", func(cheap, dear api.Counts) bool {
		return cheap.Hot == 1 && dear == api.Counts{}
	})
	l := s.load("m", 12, 60)
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
	l := s.load("m", 6, 60)
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
		frozen := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
		t.Cleanup(resume)
		l.during(time.Duration(long.Pick(5, 12)) * time.Second) // five evaluations
		l.flows(10)
		during, err := s.jobsOf("m")
		require.NoError(t, err)
		resume()
		s.decides(3)
		for _, name := range before { // what was decided before is done
			if !slices.Contains(during, name) {
				require.True(t, s.decided(name, "scale-down", frozen.Add(time.Second)), "%s is frozen, and %s went", what, name)
			}
		}
		t.Logf("%s was frozen with %d replicas, and decisions go on", what, len(before))
	}
	kill9(t, s.pid("autoscaler"))
	s.decides(3)
	l.none()
}

// decided reports whether there was a decision of a kind about a replica before a time.
func (s *scaled) decided(name, kind string, before time.Time) bool {
	list, _, err := s.api.Decisions(s.t.Context(), api.DecisionFilter{Replica: name}, api.QueryOptions{})
	require.NoError(s.t, err)
	return slices.ContainsFunc(list, func(d api.Decision) bool { return d.Kind == kind && d.Time.Before(before) })
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
	l := s.load("m", 1, 60)
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

// mayNot: an idle policy wants zero replicas, and a busy one wants more, while a switch, the dedicated
// set, the model's management or a rollout forbids it: nothing is ordered, and no order is refused. In the end it is
// allowed, and happens.
func mayNot(t *testing.T, s *scaled) {
	orders := func() (n int) {
		list, _, err := s.api.Decisions(t.Context(), api.DecisionFilter{Model: "m", Limit: 1000}, api.QueryOptions{})
		require.NoError(t, err)
		for _, d := range list {
			if d.Kind == "scale" && strings.Contains(d.Reason, "the autoscaler asked") {
				n++
			}
		}
		return n
	}
	refused := func() int {
		raw, err := os.ReadFile(filepath.Join(s.info.DataDir, "logs", "autoscaler.log"))
		require.NoError(t, err)
		return bytes.Count(raw, []byte("unable to scale target"))
	}
	path := filepath.Join(s.dir, "m.model.hcl")
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	management, slow := "full", false
	apply := func() {
		text := strings.Replace(string(file), "min = 0", "min = 0\n  management = "+strconv.Quote(management), 1)
		if slow {
			text = strings.ReplaceAll(text, "vars    = {", `vars    = { init_delay = "1m",`)
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s.remuda("model", "apply", "-detach", path)
	}
	type rule struct {
		name       string
		set, unset func()
	}
	flag := func(name, value string) rule {
		return rule{name + " " + value, func() { s.remuda("switch", "set", name, value) }, func() { s.remuda("switch", "unset", name) }}
	}
	mode := func(m string) rule {
		return rule{"management " + m, func() { management = m; apply() }, func() { management = "full"; apply() }}
	}
	dedicated := rule{"the dedicated set", func() { s.remuda("dedicated", "set", "m=1") }, func() { s.remuda("dedicated", "clear") }}
	// The canary starts for a minute.
	rollout := rule{"a rollout", func() { slow = true; apply() }, func() {
		raw, err := os.ReadFile(s.decisionsFile("autoscaler"))
		require.NoError(t, err)
		require.Contains(t, string(raw), "no scale-down until the rollout of version ")
		slow = false
		apply()
		eventually(t, time.Minute, "the end of the rollout", func() error {
			st, err := s.status()
			if err == nil && (len(st.Model.Rollouts) > 0 || st.Counts.Hot != 1 || st.Counts.Starting != 0) {
				err = fmt.Errorf("%+v, %+v: %s", st.Model.Rollouts, st.Counts, st.StatusDescription)
			}
			return err
		})
	}}
	before, errors := orders(), refused()
	// One rule is always in force: the next one is set before the last one ends.
	forbid := func(wait time.Duration, rules ...rule) (last rule) {
		for i, r := range rules {
			r.set()
			if i > 0 {
				rules[i-1].unset()
			}
			time.Sleep(wait)
			st, err := s.status()
			require.NoError(t, err)
			require.Equal(t, []int{1, 1}, []int{st.Model.Target, st.Counts.Hot}, "%s: %s", r.name, st.StatusDescription)
			require.Equal(t, before, orders(), r.name)
			require.Equal(t, errors, refused(), r.name)
		}
		return rules[len(rules)-1]
	}
	replaced := func(r rule) rule { r.unset = func() {}; return r } // by the value of the next rule
	evaluations := time.Duration(long.Pick(4, 8)) * time.Second
	never := replaced(flag("scale-to-zero-delay", "never"))
	never.set()
	time.Sleep(time.Duration(long.Pick(12, 22)) * time.Second) // idle_after is over
	idle := forbid(evaluations, never, flag("scale-to-zero-delay", "1h"), flag("disable-scaling", "true"), flag("disable-scaling/m", "true"), dedicated, rollout,
		replaced(mode("manual")), replaced(mode("disabled")), mode("upscaling"))
	busy := flag("cap-max-replicas/m", "1")
	busy.set() // before the load: upscaling is allowed now
	l := s.load("m", 12, 60)
	idle.unset()
	last := forbid(evaluations, busy, flag("disable-scaling/m", "true"), mode("manual"))
	l.flows(5)
	last.unset()
	s.awaits(2*time.Minute, "more than one replica of cheap", func(cheap, _ api.Counts) bool { return cheap.Hot > 1 })
	l.none()
	require.Greater(t, orders(), before)
}

// replays decides everything in the decisions file again and returns a copy of it: the
// autoscaler goes on writing it.
func (s *scaled) replays() (path string) {
	t := s.t
	t.Helper()
	raw, err := os.ReadFile(s.decisionsFile("autoscaler"))
	require.NoError(t, err)
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	path = filepath.Join(s.info.DataDir, "decisions.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	out, err := exec.CommandContext(t.Context(), binary(t, "remuda-autoscaler"), "replay", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, fmt.Sprintf("%d decisions are the same, 0 differ\n", bytes.Count(raw, []byte("\n"))), string(out))
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

// TestTwoAutoscalers: two agents decide about the same model. The strategy asks for exactly
// as many replicas as the clients need, so that a decision that is carried out twice shows.
func TestTwoAutoscalers(t *testing.T) {
	t.Parallel()
	s := newScaled(t, 2, "remuda-hpa", `form   = "replicate"
        metric = "running"
        target = "4"`)
	parts := []part[*scaled]{{"both believe that they lead", bothLead}}
	if long.Enabled() {
		// nomad-autoscaler's own lock has a TTL of 10 s at least.
		parts = append(parts, part[*scaled]{"one leads, is frozen and wakes up", leaderWakes})
	}
	inTurn(t, s, s.use, parts)
}

// autoscalers are the names of the two agents.
var autoscalers = [2]string{"autoscaler", "autoscaler-2"}

// bothLead: no lock can exclude that, as a leader that was frozen may go on with what it
// did.
func bothLead(t *testing.T, s *scaled) {
	l := s.load("m", 12, 60)
	s.awaits(3*time.Minute, "three replicas of cheap", func(cheap, _ api.Counts) bool { return cheap.Hot == 3 })
	for _, name := range autoscalers {
		grows(t, s.decisionsFile(name), 3)
		saved, err := filepath.Glob(filepath.Join(s.info.DataDir, name, "state", "*.json"))
		require.NoError(t, err)
		require.Len(t, saved, 1, "each agent has a state of its own")
	}
	l.none()
	s.grewOnce(3)
}

// leaderWakes: with nomad-autoscaler's own lock one of the two is idle, and takes over from
// the other while that is frozen.
func leaderWakes(t *testing.T, s *scaled) {
	for _, name := range autoscalers {
		require.NoError(t, s.cluster.End(name, syscall.SIGTERM))
		require.NoError(t, devcluster.Overlay(filepath.Join(s.info.DataDir, "config", name+".hcl"),
			"high_availability {\n  enabled    = true\n  lock_ttl   = \"10s\"\n  lock_delay = \"1s\"\n}\n"))
		require.NoError(t, s.cluster.Start(name))
	}
	l := s.load("m", 12, 60)
	// The leader makes ten decisions while the other one makes none.
	leads := func(limit time.Duration, want int) (leader int) {
		count := func() (n [2]int) {
			for i, name := range autoscalers {
				n[i] = lines(t, s.decisionsFile(name))
			}
			return n
		}
		since := count()
		eventually(t, limit, "one of the two alone to decide", func() error {
			now := count()
			first, second := now[0]-since[0], now[1]-since[1]
			switch {
			case first > 0 && second > 0:
				since = now
				return errors.New("both decide")
			case first >= 10 && want != 1:
				leader = 0
			case second >= 10 && want != 0:
				leader = 1
			default:
				return fmt.Errorf("not enough decisions yet: %d and %d", first, second)
			}
			return nil
		})
		return leader
	}
	leader := leads(5*time.Minute, -1)
	pid := s.pid(autoscalers[leader])
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(resume)
	leads(5*time.Minute, 1-leader)
	more := s.load("m", 8, 60)
	s.awaits(3*time.Minute, "five replicas of cheap", func(cheap, _ api.Counts) bool { return cheap.Hot == 5 })
	resume()
	// nomad-autoscaler 0.5 does not notice that it lost its lock: from here both act again.
	for _, name := range autoscalers {
		grows(t, s.decisionsFile(name), 3)
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
		if d.Kind != "scale" || d.Details["origin"] != "autoscaler" {
			continue
		}
		sum := 0
		for _, n := range sumOf.FindAllString(d.Details["asked"], -1) {
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

// lines counts the lines of a file that may not be there yet.
func lines(t testing.TB, path string) int {
	t.Helper()
	return mentions(t, path, "\n")
}

// mentions counts how often a text is in a file that may not be there yet.
func mentions(t testing.TB, path, text string) int {
	t.Helper()
	raw, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return bytes.Count(raw, []byte(text))
}
