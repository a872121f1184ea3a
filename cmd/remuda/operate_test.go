package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/testkit/proclog"
)

const jobFile = `job "m" {
  group "replica" {
    task "primary" {}
  }
}
`

// modelFile writes a model file and its job file, and returns its path.
func writeModel(t *testing.T, name, body string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "job.nomad.hcl"), []byte(jobFile), 0o600))
	path := filepath.Join(dir, "model.hcl")
	require.NoError(t, os.WriteFile(path, []byte("model \""+name+"\" {\n"+body+"\n}\n"), 0o600))
	return path
}

// variant is one variant of a model file.
func variant(name, memory string) string {
	return `
  variant "` + name + `" {
    gpu {
      model = "H100"
      count = 1
    }
    memory      = "` + memory + `"
    host_memory = "1GiB"
    cost        = 2.5
    slots       = 4
    job         = "job.nomad.hcl"
  }`
}

// TestOperatorsDay goes through the verbs that change and show models.
func TestOperatorsDay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// What drains is only known once all gateways had the time to report.
	config := filepath.Join(t.TempDir(), "a.hcl")
	require.NoError(t, os.WriteFile(config, []byte("acl {\n enabled = false\n}\nreconcile {\n gateway_ttl = \"3s\"\n}\n"), 0o600))
	r := startAgent(t, "-config", config, "-data-dir", t.TempDir(), "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr())
	r.gateway()
	const model = "meta/Llama:8b"
	path := writeModel(t, model, "  max = 3\n  replicas = 1\n"+variant("h100", "20GiB"))

	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
	require.Contains(t, r.ok("replica", "list"), "No replicas.")
	require.Contains(t, r.ok("decision", "list"), "No decisions.")
	r.eventually("the node", func() bool { return strings.Contains(r.ok("node", "list"), "gpu-1") })

	// A dry run changes nothing.
	out := r.ok("model", "apply", path, "-dry-run")
	require.Contains(t, out, `model "meta/Llama:8b" is new`)
	require.Contains(t, out, `variant "h100"`)
	require.Contains(t, out, "Dry run: nothing was changed.")
	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
	var plan api.ApplyResponse
	r.json(&plan, "model", "apply", path, "-dry-run")
	require.True(t, plan.DryRun)
	require.True(t, plan.Models[0].New)

	// Applied, it is watched until it runs.
	out = r.ok("model", "apply", path)
	require.Contains(t, out, "Applied at index ")
	require.Contains(t, out, "serving on gpu-1")
	require.Contains(t, out, "meta/Llama:8b: 1 replica running.\n")
	require.Contains(t, r.ok("model", "apply", path), "Nothing changed.\n")
	require.Regexp(t, `(?m)^meta/Llama:8b +running +1 +1 +0 +0 +0 +0 +0 +3 +full +h100$`, r.ok("model", "list", "-verbose"))
	require.Regexp(t, `(?m)^meta/Llama:8b +running +1 +1 +0 +0$`, r.ok("model", "list"))

	// Twice as many, and back.
	out = r.ok("scale", model, "2")
	require.Contains(t, out, "meta/Llama:8b: the target is now 2 replicas.")
	require.Contains(t, r.ok("scale", model, "2"), "the target is already 2 replicas.")
	var replicas []api.Replica
	r.json(&replicas, "replica", "list", "-model", model)
	require.Len(t, replicas, 2)
	for _, one := range replicas {
		require.Equal(t, "serving", one.Status)
		require.NotNil(t, w.nomad.Job(one.Name))
	}
	require.Contains(t, r.ok("scale", model+"/h100", "1", "-detach"), "meta/Llama:8b, variant h100: the target is now 1 replica.")
	r.eventually("one replica", func() bool {
		r.json(&replicas, "replica", "list")
		return len(replicas) == 1 && replicas[0].Status == "serving"
	})
	got := r.do("scale", model+"/h200", "1")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `model "meta/Llama:8b" has no variant "h200": it has h100`)
	got = r.do("scale", "meta/nothing", "1")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `remuda scale: no model "meta/nothing"`)
	got = r.do("scale", model, "4")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "4")

	// What is shown of all this.
	one := replicas[0]
	out = r.ok("replica", "status", one.ID[:6])
	require.Regexp(t, `(?m)^Name +(=|  *=) meta/Llama:8b:h100:`+one.ID+`$`, out)
	require.Contains(t, out, "gpu-1")
	var status api.Replica
	r.json(&status, "replica", "status", one.ID)
	require.Equal(t, one.Name, status.Name)
	got = r.do("replica", "status", "zzz")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `no replica "zzz"`)
	brief := strings.TrimSuffix(one.Name, one.ID[8:])
	out = r.ok("model", "status", model)
	for _, want := range []string{"Why", "\nVariants\n", "\nReplicas\n", `Decisions, newest first (details: "remuda decision list")`, brief, "20 GiB"} {
		require.Contains(t, out, want)
	}
	var about api.ModelStatus
	r.json(&about, "model", "status", model)
	require.Equal(t, 1, about.Counts.Hot)
	require.NotEmpty(t, about.StatusDescription)
	var decisions []api.Decision
	r.json(&decisions, "decision", "list", "-model", model, "-limit", "2")
	require.Len(t, decisions, 2)
	require.NotEmpty(t, decisions[0].Reason)
	require.Contains(t, r.ok("decision", "list"), decisions[0].Reason)

	// The file that it prints is the one that was applied.
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(text), r.ok("model", "file", model))
	require.Equal(t, jobFile, r.ok("model", "file", "-variant", "h100", model))
	require.Contains(t, r.ok("model", "apply", path), "Nothing changed.\n")

	// Evicted, by the beginning of its ID.
	out = r.ok("evict", one.ID[:8])
	require.Regexp(t, `(?m)^`+brief+` +gpu-1 +HOT +stopped +20 GiB and 1 GPU +finishes its requests first$`, out)
	require.Contains(t, out, "1 replica evicted. Progress: \"remuda replica list -watch\"")
	r.eventually("no replica", func() bool { return strings.Contains(r.ok("replica", "list"), "No replicas.") })
	require.Contains(t, r.ok("evict", model), "No replicas on GPUs.")
	got = r.do("evict", "nobody")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `remuda evict: no model "nobody", and no replica "nobody"`)

	// Stopped, started, forgotten.
	r.ok("scale", model, "1")
	require.Contains(t, r.ok("model", "stop", model), "is stopping")
	require.Regexp(t, `(?m)^meta/Llama:8b +stopped +0 +0 `, r.ok("model", "list"))
	require.Contains(t, r.ok("model", "start", model), "serving on gpu-1")
	require.Contains(t, r.ok("model", "delete", model), "meta/Llama:8b is deleted.\n")
	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
	for _, verb := range []string{"status", "delete"} {
		got = r.do("model", verb, model)
		require.Equal(t, 1, got.code)
		require.Contains(t, got.errout, model)
	}
}

// TestChangeOfAModel: what changes is shown, and rolled until all replicas are of it.
func TestChangeOfAModel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config := filepath.Join(t.TempDir(), "a.hcl")
	require.NoError(t, os.WriteFile(config, []byte("acl {\n enabled = false\n}\nreconcile {\n canary_time = \"50ms\"\n gateway_ttl = \"500ms\"\n}\n"), 0o600))
	r := startAgent(t, "-config", config, "-data-dir", t.TempDir(), "-http", "127.0.0.1:0", "-raft", "127.0.0.1:0", "-nomad", w.nomad.URL, "-consul", w.consul.Addr())
	r.gateway()
	r.ok("model", "apply", writeModel(t, "m", "  max = 2\n  replicas = 1\n"+variant("h100", "20GiB")))
	var before []api.Replica
	r.json(&before, "replica", "list")
	require.Len(t, before, 1)
	path := writeModel(t, "m", "  max = 2\n  replicas = 1\n"+variant("h100", "30GiB"))
	out := r.ok("model", "apply", path)
	require.Contains(t, out, `model "m" changes`)
	require.Contains(t, out, "memory")
	require.Contains(t, out, "canary")
	require.Contains(t, out, "m: 1 replica running.\n")
	var after []api.Replica
	r.json(&after, "replica", "list")
	require.Len(t, after, 1)
	require.True(t, after[0].Current)
	require.NotEqual(t, before[0].Name, after[0].Name)
}

// TestBadModelFiles: nothing is changed, and every fault is named with its line.
func TestBadModelFiles(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	path := writeModel(t, "m", "  max = -1\n  priority = 700\n"+variant("h100", "much"))
	got := r.do("model", "apply", path)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, path+":2:")
	require.Contains(t, got.errout, path+":3:")
	require.Contains(t, got.errout, `"much"`)
	w.nomad.Refuse("task primary: missing driver")
	got = r.do("model", "apply", writeModel(t, "m", "  max = 1\n"+variant("h100", "1GiB")))
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "task primary: missing driver")
	require.Contains(t, r.ok("model", "list"), `No models. Add one with "remuda model apply FILE".`)
}

// TestNodesAndSwitches goes through the verbs of nodes and switches.
func TestNodesAndSwitches(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	r.eventually("the node", func() bool { return strings.Contains(r.ok("node", "list"), "gpu-1") })
	require.Regexp(t, `(?m)^11111111-\S+ +gpu-1 +dc1 +default +ready +2 +4 of 4 +\S+ GiB of \S+ GiB +own$`, r.ok("node", "list", "-verbose"))
	var nodes []api.Node
	r.json(&nodes, "node", "list")
	require.Len(t, nodes, 1)
	require.Equal(t, gpuA+" is cordoned: nothing new is placed there, and its replicas move where there is room.\n", r.ok("node", "cordon", "GPU-aaaa", "-reason", "it is hot"))
	picture := r.ok("node", "status", "gpu-1")
	require.Contains(t, picture, "cordoned: anonymous (no ACL token): it is hot\n["+strings.Repeat("x", width-2)+"]\n")
	require.Contains(t, picture, "  seats [0: free] [1: free]\n")
	require.NotContains(t, picture, "\x1b")
	var shown api.NodeStatus
	r.json(&shown, "node", "status", "gpu-1")
	require.Equal(t, "anonymous (no ACL token): it is hot", shown.Node.GPUs[0].CordonReason)
	require.Positive(t, shown.Node.WarmBudget)
	require.Regexp(t, gpuA+` .* cordoned`, r.ok("node", "status", "1111"))
	require.Regexp(t, `(?m)^11111111 .* ready +2, 1 out of use `, r.ok("node", "list"))
	const reason = "the GPU cannot be read: NVML hangs in nvmlDeviceGetMemoryInfo"
	w.setNode(map[string]string{gpuA: reason, gpuB: "XID 79"})
	status := func() string { return strings.Join(strings.Fields(r.ok("node", "status", "gpu-1")), " ") } // lines are wrapped
	r.eventually("the reasons", func() bool {
		s := status()
		return strings.Contains(s, "cordoned, unhealthy: "+reason) && strings.Contains(s, gpuB+" H100 unhealthy: XID 79")
	})
	w.setNode(nil)
	r.eventually("the GPUs to be healthy", func() bool { return !strings.Contains(status(), "unhealthy") })
	require.Equal(t, gpuA+" is uncordoned.\n", r.ok("node", "uncordon", gpuA))
	for _, node := range []string{"gpu-1", "1111"} {
		require.Equal(t, "Node gpu-1 is cordoned: nothing new is placed there, and its replicas move where there is room.\n", r.ok("node", "cordon", node))
		require.Regexp(t, `(?m)^11111111 .* cordoned `, r.ok("node", "list"))
		require.Equal(t, "Node gpu-1 is uncordoned.\n", r.ok("node", "uncordon", node))
		require.Regexp(t, `(?m)^11111111 .* ready `, r.ok("node", "list"))
	}
	got := r.do("node", "cordon", "GPU-")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "is ambiguous: use a longer prefix of one of\n  "+gpuA+" (gpu-1)\n  "+gpuB+" (gpu-1)")
	got = r.do("node", "uncordon", "nowhere")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `no GPU or node "nowhere"`)
	got = r.do("node", "status", "nowhere")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "nowhere")

	require.Contains(t, r.ok("switch", "list"), "No switches are set.")
	require.Equal(t, "pause-reconcile = true\n", r.ok("switch", "set", "pause-reconcile", "true"))
	require.Regexp(t, `(?m)^pause-reconcile +true$`, r.ok("switch", "list"))
	var switches []api.Switch
	r.json(&switches, "switch", "list")
	require.Len(t, switches, 1)
	require.Equal(t, "disable-scaling/nobody = true\nWarning: model \"nobody\" does not exist: the switch has no effect until it does.\n", r.ok("switch", "set", "disable-scaling/nobody", "true"))
	got = r.do("switch", "set", "disable-scalling", "true")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `unknown switch "disable-scalling", did you mean "disable-scaling"?`)
	got = r.do("switch", "set", "pause-reconcile/m", "true")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "pause-reconcile applies to all models")
	got = r.do("switch", "set", "scale-to-zero-delay", "soon")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `"soon"`)
	require.Contains(t, remuda(t, "switch", "set", "-h").out, "cap-max-replicas[/MODEL]")
	r.ok("switch", "unset", "disable-scaling/nobody")
	require.Equal(t, "pause-reconcile unset.\n", r.ok("switch", "unset", "pause-reconcile"))
	require.Equal(t, "pause-reconcile was not set.\n", r.ok("switch", "unset", "pause-reconcile"))
	var nothing struct{}
	r.json(&nothing, "switch", "unset", "pause-reconcile")
	require.Contains(t, r.ok("switch", "list"), "No switches are set.")
}

// TestSnapshots: saved, looked at, damaged, restored.
func TestSnapshots(t *testing.T) {
	r := newWorld(t).dev()
	r.ok("switch", "set", "cap-max-replicas", "1")
	file := filepath.Join(t.TempDir(), "snapshot")
	require.Contains(t, r.ok("snapshot", "save", file), file+": saved, ")
	require.Regexp(t, `(?m)^Rows of switches += 1$`, remuda(t, "snapshot", "inspect", file).out)
	var info state.SnapshotInfo
	require.NoError(t, json.Unmarshal([]byte(remuda(t, "snapshot", "inspect", "-json", file).out), &info))
	require.Equal(t, 1, info.Rows[state.TableSwitches])
	stat, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), stat.Mode().Perm())

	r.ok("switch", "set", "cap-max-replicas", "2")
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	damaged := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, os.WriteFile(damaged, whole[:len(whole)-3], 0o600))
	for _, got := range []result{r.do("snapshot", "restore", damaged), remuda(t, "snapshot", "inspect", damaged)} {
		require.Equal(t, 1, got.code)
		require.Contains(t, got.errout, "snapshot is damaged")
	}
	require.Regexp(t, `(?m)^cap-max-replicas +2$`, r.ok("switch", "list"))
	require.Contains(t, r.ok("snapshot", "restore", file), file+": restored, ")
	require.Regexp(t, `(?m)^cap-max-replicas +1$`, r.ok("switch", "list"))

	// What cannot be saved leaves no file.
	dir := t.TempDir()
	got := remuda(t, "snapshot", "save", filepath.Join(dir, "x"), "-address", "http://127.0.0.1:1")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `is "remuda agent" running there? Set -address or REMUDA_ADDR to its address`)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestModelAndVariant: names of models may hold what separates the variant.
func TestModelAndVariant(t *testing.T) {
	models := []api.ModelSummary{
		{Name: "a", Variants: []string{"b", "v"}}, {Name: "a/b", Variants: []string{"v"}}, {Name: "a/b/c", Variants: []string{"w"}},
	}
	for _, tc := range []struct{ arg, model, variant, err string }{
		{"a", "a", "", ""},
		{"a/v", "a", "v", ""},
		{"a/b", "a/b", "", ""}, // the longest name of a model
		{"a/b/v", "a/b", "v", ""},
		{"a/b/c", "a/b/c", "", ""},
		{"a/b/c/w", "a/b/c", "w", ""},
		{"a/b/c/v", "", "", `model "a/b/c" has no variant "v": it has w`},
		{"a/x", "", "", `model "a" has no variant "x": it has b, v`},
		{"a/", "", "", `model "a" has no variant ""`},
		{"x/v", "", "", `no model "x/v"`},
	} {
		model, variant, err := modelAndVariant(models, tc.arg)
		if tc.err != "" {
			require.ErrorContains(t, err, tc.err, tc.arg)
			continue
		}
		require.NoError(t, err, tc.arg)
		require.Equal(t, []string{tc.model, tc.variant}, []string{model, variant}, tc.arg)
	}
}

// TestSettled: what `model apply` and `scale` wait for.
func TestSettled(t *testing.T) {
	hot := api.Replica{Tier: "HOT", Status: "serving", Goal: "run", Current: true}
	with := func(target int, replicas ...api.Replica) api.ModelStatus {
		return api.ModelStatus{Model: api.Model{Target: target}, Replicas: replicas}
	}
	change := func(r api.Replica, f func(*api.Replica)) api.Replica { f(&r); return r }
	rolling := with(1, hot)
	rolling.Model.Rollouts = map[string]api.Rollout{"v": {Status: "rolling"}}
	for name, tc := range map[string]struct {
		s    api.ModelStatus
		want bool
	}{
		"none wanted, none there": {with(0), true},
		"none there":              {with(1), false},
		"all there":               {with(2, hot, hot), true},
		"one too many":            {with(1, hot, hot), false},
		"one starts":              {with(2, hot, change(hot, func(r *api.Replica) { r.Status = "starting" })), false},
		"one leaves":              {with(1, hot, change(hot, func(r *api.Replica) { r.Status = "draining" })), false},
		"one is old":              {with(1, change(hot, func(r *api.Replica) { r.Current = false })), false},
		"one is a memory":         {with(1, hot, change(hot, func(r *api.Replica) { r.Status = "cold" })), true},
		"one rests":               {with(1, hot, change(hot, func(r *api.Replica) { r.Status = "warm" })), true},
		"one wakes":               {with(2, hot, change(hot, func(r *api.Replica) { r.Tier, r.Status = "WARM", "waking" })), false},
		"it rolls":                {rolling, false},
	} {
		got, err := settled(tc.s)
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got, name)
	}
	rolling.Model.Rollouts["v"] = api.Rollout{Status: "rolled_back", Reason: "it does not start"}
	_, err := settled(rolling)
	require.ErrorContains(t, err, "variant v was rolled back: it does not start")
}

// TestFlagsAnywhere: flags may stand behind arguments, but not behind --.
func TestFlagsAnywhere(t *testing.T) {
	r := newWorld(t).dev()
	for _, args := range [][]string{{"switch", "set", "pause-reconcile", "-json", "1"}, {"switch", "set", "-json", "pause-reconcile", "1"}, {"switch", "set", "pause-reconcile", "1", "-json=true"}} {
		require.JSONEq(t, `"pause-reconcile"`, field(t, r.ok(args...), "Name"))
	}
	got := remuda(t, "switch", "set", "-address", r.url, "--", "pause-reconcile", "-json")
	require.Equal(t, 0, got.code, got.errout)
	require.Contains(t, got.out, "pause-reconcile = -json")
}

func field(t *testing.T, text, name string) string {
	t.Helper()
	var all map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(text), &all), text)
	return string(all[name])
}

// TestWatchingEnds: a goal that is never reached does not hold anybody for ever.
func TestWatchingEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.dev()
	path := writeModel(t, "big", "  max = 1\n  replicas = 1\n"+variant("h100", "500GiB"))
	got := r.do("model", "apply", path, "-timeout", "1s")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "not finished after 1s")
	require.Contains(t, got.errout, "remuda model status big")

	ctx, cancel := context.WithCancel(t.Context())
	out := &lines{out: make(chan string, 100)}
	errs := &proclog.Buffer{}
	p := &program{ctx: ctx, stdout: out, stderr: errs}
	code := make(chan int, 1)
	go func() { code <- p.run([]string{"model", "start", "big", "-address", r.url}) }()
	<-out.out
	cancel()
	require.Equal(t, 1, <-code)
	require.Contains(t, errs.String(), "interrupted")
}

// TestFindGPUs: the machine of a node that is gone may be another node by now, with the same
// GPUs; and a node may be named like the beginning of another one's ID.
func TestFindGPUs(t *testing.T) {
	t.Parallel()
	nodes := []api.Node{
		{ID: "aaaa-1", Name: "old", WrittenOff: true, GPUs: []api.GPU{{UUID: gpuA}}},
		{ID: "bbbb-2", Name: "new", GPUs: []api.GPU{{UUID: gpuA}, {UUID: gpuB}}},
		{ID: "cccc-3", Name: "aaaa", GPUs: []api.GPU{{UUID: "GPU-cccc"}}},
	}
	for arg, want := range map[string]place{
		gpuA:       {node: "bbbb-2", gpu: gpuA, name: "new"},
		"GPU-aaaa": {node: "bbbb-2", gpu: gpuA, name: "new"},
		"old":      {node: "aaaa-1", name: "old"},
		"aaaa-":    {node: "aaaa-1", name: "old"},
		"aaaa":     {node: "cccc-3", name: "aaaa"},
		"bbbb-2":   {node: "bbbb-2", name: "new"},
	} {
		got, err := findGPUs(nodes, arg)
		require.NoError(t, err, arg)
		require.Equal(t, want, got, arg)
	}
	_, err := findGPUs(nodes, "GPU-")
	require.ErrorContains(t, err, "ambiguous")
	_, err = findGPUs(nodes, "ne")
	require.ErrorContains(t, err, `no GPU or node "ne"`)
}
