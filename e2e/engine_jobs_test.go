//go:build e2e

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"

	"remuda/internal/devcluster"
	"remuda/internal/testkit/documents"
	"remuda/internal/vram"
	"remuda/jobs"
)

// standIns are programs that take the arguments that the job files give to an engine, refuse
// others as it does, and are the simulated engine with its API. A GPU has no room for two of
// their KV caches.
var standIns = map[string]string{
	"vllm": `
[ "$1" = serve ] || fail "the command $1"
[ "$VLLM_SERVER_DEV_MODE" = 1 ] || fail "no development mode"
shift 2
lock=
while [ $# -gt 0 ]; do
	case $1 in
	--enable-sleep-mode) shift; continue ;;
	--host) host=$2 ;;
	--port) port=$2 ;;
	--served-model-name) model=$2 ;;
	--max-num-seqs) slots=$2 ;;
	--tensor-parallel-size) [ "$2" = 1 ] || fail "$1 $2" ;;
	--gpu-memory-utilization) [ "$2" = 0.7 ] || [ "$2" = 0.90 ] || fail "$1 $2" ;;
	--max-model-len) [ "$2" = 8192 ] || fail "$1 $2" ;;
	--load-format) [ "$2" = gms ] || fail "$1 $2"; lock=rw_or_ro ;;
	--worker-cls) [ "$2" = gpu_memory_service.integrations.vllm.worker:GMSWorker ] || fail "$1 $2" ;;
	--model-loader-extra-config) [ "$2" = '{"gms_read_only": true}' ] || fail "$1 $2"; lock=ro ;;
	*) fail "unrecognized arguments: $1" ;;
	esac
	shift 2
done
set -- -api vllm
if [ -n "$lock" ]; then
	[ "$DYN_GMS_SCRATCH_KV_ENABLED" = 1 ] || fail "it has its KV cache before it wakes"
	set -- "$@" -gms-socket "$GMS_SOCKET_DIR/gms_${REMUDA_USE_GPUS}_weights.sock" -gms-lock "$lock" -start-asleep
fi
`,
	"python3": `
[ "$1 $2" = "-m sglang.launch_server" ] || fail "the module $2"
shift 2
sleeps=0 key=
while [ $# -gt 0 ]; do
	case $1 in
	--enable-memory-saver | --enable-weights-cpu-backup) sleeps=$((sleeps + 1)); shift; continue ;;
	--enable-metrics) shift; continue ;;
	--model-path) [ "$2" = /models/llama ] || fail "$1 $2" ;;
	--host) host=$2 ;;
	--port) port=$2 ;;
	--served-model-name) model=$2 ;;
	--max-running-requests) slots=$2 ;;
	--tp-size) [ "$2" = 1 ] || fail "$1 $2" ;;
	--mem-fraction-static) [ "$2" = 0.7 ] || fail "$1 $2" ;;
	--context-length) [ "$2" = 8192 ] || fail "$1 $2" ;;
	--api-key) key=$2 ;;
	*) fail "unrecognized arguments: $1" ;;
	esac
	shift 2
done
[ $sleeps = 2 ] || fail "it cannot sleep"
[ -n "$key" ] || fail "it asks for no API key"
set -- -api sglang -api-key "$key"
`,
}

// writeStandIns writes them into a directory for PATH.
func writeStandIns(t testing.TB, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	for name, text := range standIns {
		remuda := binary(t, "remuda")
		text = "#!/bin/sh\nset -eu\nfail() { echo \"" + name + ": $*\" >&2; exit 64; }\n" + text + fmt.Sprintf(`
weights=$NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME.safetensors
%[1]q sim weights -size 64MiB "$weights"
exec %[1]q sim -listen "$host:$port" -model "$model" -max-num-seqs "$slots" -weights "$weights" \
	-kv-memory 50GiB -context-memory 400MiB -teardown 1s "$@"
`, remuda)
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700))
	}
	return bin
}

// withoutContainers is a job file for Docker as one for raw_exec: the same tasks with the same
// arguments, with the stand-ins on their PATH.
func withoutContainers(t testing.TB, name string, source []byte, bin string) []byte {
	t.Helper()
	file, diags := hclwrite.ParseConfig(source, name, hcl.InitialPos)
	require.False(t, diags.HasErrors(), diags.Error())
	configs := 0
	var walk func(*hclwrite.Body)
	walk = func(body *hclwrite.Body) {
		if body.GetAttribute("driver") != nil {
			body.SetAttributeValue("driver", cty.StringVal("raw_exec"))
		}
		for _, b := range body.Blocks() {
			switch b.Type() {
			case "volume", "volume_mount", "mount":
				body.RemoveBlock(b)
			case "config":
				configs++
				for _, docker := range []string{"image", "image_pull_timeout", "entrypoint", "network_mode", "shm_size", "init"} {
					require.NotNil(t, b.Body().RemoveAttribute(docker), "%s: %s", name, docker)
				}
				b.Body().SetAttributeValue("command", cty.StringVal(binary(t, "remuda")))
			case "env":
				b.Body().SetAttributeValue("PATH", cty.StringVal(bin+string(os.PathListSeparator)+os.Getenv("PATH")))
			}
			walk(b.Body())
		}
	}
	walk(file.Body())
	require.Equal(t, 1, configs)
	return file.Bytes()
}

// applyFirstModel applies the first model file of the guide, with the cluster's Consul and the weights of
// a stand-in. Its job file is the one that comes with remuda, as "remuda model render" prints it.
func applyFirstModel(f *fleet, bin string) (name string) {
	f.t.Helper()
	guide, err := os.ReadFile(filepath.FromSlash("../docs/guides/own-engine.md"))
	require.NoError(f.t, err)
	blocks, _ := documents.Parse(string(guide))
	first := slices.IndexFunc(blocks, func(b documents.Block) bool { return b.File() != "" })
	require.GreaterOrEqual(f.t, first, 0)
	text := strings.Join(blocks[first].Lines, "\n") + "\n"
	require.LessOrEqual(f.t, strings.Count(text, "\n"), 13, "about ten lines")
	text = strings.NewReplacer(`"127.0.0.1:8500"`, fmt.Sprintf("%q", f.info.Consul), `"16GiB"`, `"64MiB"`).Replace(text)
	path := filepath.Join(f.dir, "first.model.hcl")
	require.NoError(f.t, os.WriteFile(path, []byte(text), 0o600))
	require.Contains(f.t, f.remuda("model", "apply", "-dry-run", path), "Dry run: nothing was changed.", "Nomad takes the job file as it is")

	rendered := f.remuda("model", "render", path)
	require.Contains(f.t, rendered, fmt.Sprintf("default     = %q", f.info.Consul))
	own, diags := hclwrite.ParseConfig(withoutContainers(f.t, "vllm-failover", []byte(rendered), bin), "own", hcl.InitialPos)
	require.False(f.t, diags.HasErrors(), diags.Error())
	for name, value := range map[string]int64{"cpu": 200, "memory": 512} { // of a test's machine
		own.Body().FirstMatchingBlock("variable", []string{name}).Body().SetAttributeValue("default", cty.NumberIntVal(value))
	}
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, "own.nomad.hcl"), own.Bytes(), 0o600))
	text = strings.Replace(text, "    engine ", "    job     = \"own.nomad.hcl\"\n    engine ", 1)
	require.NoError(f.t, os.WriteFile(path, []byte(text), 0o600))
	f.remuda("model", "apply", "-detach", path)
	return "llama-3-8b"
}

// chatsAndLogs asks a model with remuda chat, and finds its engines in remuda logs.
func chatsAndLogs(f *fleet, model string) {
	f.t.Helper()
	name := f.hot(model, 1)[0]
	answer := f.remuda("chat", model, "-m", "hello", "-max-tokens", "20")
	require.Contains(f.t, answer, exact(model, "hello", 20).Text+"\n")
	require.Regexp(f.t, `\[`+regexp.QuoteMeta(name)+`, 20 tokens, [0-9.]+ tokens/s, `, answer)
	logs := f.remuda("logs", name[:len(model)+len(":h100:")+8], "-n", "0")
	require.Regexp(f.t, `(?m)^primary \| .*shim listens`, logs)
	require.Regexp(f.t, `(?m)^shadow  \| .*shim listens`, logs)
	require.Contains(f.t, logs, "engine started")
	require.NotContains(f.t, f.remuda("logs", model, "-task", "shadow"), "primary | ")
}

// TestEngineJobs runs the job files of engines that need GPUs on stand-ins for the engines: they
// serve, sleep and wake, and the standby of a pair takes over.
func TestEngineJobs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) { o.GPUs = 5 })
	w := &twins{f}
	bin := writeStandIns(t, f.dir)
	const (
		mib     = int64(1) << 20
		context = 400 * mib
		serving = 50<<30 + context + 64*mib
	)
	models := []struct {
		name, job, engine, vars string
		pair                    bool
		used, warm              int64 // bytes of the GPU's memory
	}{
		{"sglang", "sglang", "sglang", "mem_fraction_static = 0.7, context_length = 8192", false, serving, context},
		{"sglang-pair", "sglang-failover", "sglang", "mem_fraction_static = 0.7, context_length = 8192", true, serving, context},
		{"cold-pair", "vllm-failover", "vllm", "gpu_memory_utilization = 0.7, max_model_len = 8192", true, serving, context},
		{"warm-pair", "vllm-failover", "vllm", "gpu_memory_utilization = 0.7, max_model_len = 8192, gms = true", true, serving + context, 2*context + 64*mib},
	}
	for _, m := range models {
		job := m.job + ".nomad.hcl"
		source, err := fs.ReadFile(jobs.Files, job)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, job), withoutContainers(t, job, source, bin), 0o600))
		path := filepath.Join(f.dir, m.name+".model.hcl")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 1
  failover = %t

  variant "gpu" {
    gpu {
      count = 1
    }

    weights      = "64MiB"
    memory       = "60GiB"
    sleep_memory = "1GiB"
    cost         = 1
    slots        = 16
    engine       = %q
    job          = %q
    vars         = { weights = "llama", cpu = 200, memory = 512, %s }
  }
}
`, m.name, m.pair, m.engine, job, m.vars), 0o600))
		f.remuda("model", "apply", "-detach", path)
	}
	models = append(models, struct {
		name, job, engine, vars string
		pair                    bool
		used, warm              int64
	}{name: applyFirstModel(f, bin), pair: true, used: serving, warm: context})
	for _, m := range models {
		f.hot(m.name, 1)
		used := func(want int64) {
			t.Helper()
			replicas, err := f.replicas(m.name)
			require.NoError(t, err)
			for _, r := range replicas {
				eventually(t, 20*time.Second, "the GPU's memory of "+m.name, func() error {
					n, _, err := vram.Used(filepath.Join(f.info.DataDir, "gpus"), gpuOf(r))
					if err == nil && (n < want-8*mib || n > want+8*mib) {
						err = fmt.Errorf("%d bytes are in use, not %d", n, want)
					}
					return err
				})
			}
		}
		f.asked(m.name, "placed")
		if m.pair {
			standsBy := func() error { return w.waits(m.name, m.name != "warm-pair") }
			eventually(t, time.Minute, "the standby of "+m.name, standsBy)
			used(m.used)
			for range 2 { // the second time to the engine that was killed
				w.failedOver(m.name)
				f.asked(m.name, "after a failover")
				eventually(t, time.Minute, "the standby of "+m.name, standsBy)
			}
		}
		used(m.used)
		f.remuda("evict", m.name, "-to", "warm")
		f.tiers(m.name, 0, 1, 0)
		used(m.warm)
		t.Logf("%s woke and answered after %s", m.name, f.asked(m.name, "from WARM").Round(time.Millisecond))
		f.tiers(m.name, 1, 0, 0)
		used(m.used)
		if m.job == "" {
			chatsAndLogs(f, m.name)
		}
	}
}
