package modelfile_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/internal/hclfault"
)

// faults are found in variants of good files: each line replaces the one with the
// same name.
var faults = []struct {
	name  string
	model string // fields of the model
	idle  string
	gpu   string
	// variant's fields, which replace weights and job where they name them.
	variant string
	want    []string
}{
	{"min negative", "min = -1", "", "", "", []string{`d/m.hcl:2:7: model "m": min is -1: must be a whole number from 0 to 1000`}},
	{"min fraction", "min = 1.5", "", "", "", []string{`min is 1.5: must be a whole number`}},
	{"min text", `min = "1"`, "", "", "", []string{`min is "1": must be a whole number`}},
	{"min null", `min = null`, "", "", "", []string{`min is null: must be a whole number from 0 to 1000`}},
	{"min list", `min = []`, "", "", "", []string{`min is a list`}},
	{"min unknown function", `min = sum(1)`, "", "", "", []string{`min: function calls not allowed`}},
	{"max zero", "max = 0", "", "", "", []string{`max is 0: must be a whole number from 1 to 1000`}},
	{"max huge", "max = 1e30", "", "", "", []string{`max is 1e+30`}},
	{"min above max", "min = 3\nmax = 2", "", "", "", []string{`d/m.hcl:2:7: model "m": min is 3: must be at most max (2)`}},
	{"replicas above max", "max = 2\nreplicas = 3", "", "", "", []string{`replicas is 3: must be at most max (2)`}},
	{"replicas below min", "min = 2\nreplicas = 1", "", "", "", []string{`replicas is 1: must be at least min (2)`}},
	{"replicas bool", "replicas = true", "", "", "", []string{`replicas is true: must be a whole number`}},
	{"priority", "priority = 101", "", "", "", []string{`priority is 101: must be a whole number from 0 to 100`}},
	{"dedicated", `dedicated = "yes"`, "", "", "", []string{`dedicated is "yes": must be true or false`}},
	{"failover", `failover = 1`, "", "", "", []string{`failover is 1: must be true or false`}},
	{"management", `management = "ful"`, "", "", "", []string{`management is "ful": must be "disabled", "manual", "upscaling" or "full"; did you mean "full"?`}},
	{"management number", `management = 3`, "", "", "", []string{`management is 3: must be "disabled"`}},
	{"unknown argument", `replica = 3`, "", "", "", []string{`An argument named "replica" is not expected here. Did you mean "replicas"?`}},
	{"unknown block", "vriant \"v\" {\n}", "", "", "", []string{`Blocks of type "vriant" are not expected here. Did you mean "variant"?`}},
	{"argument twice", "min = 1\nmin = 2", "", "", "", []string{`d/m.hcl:3:1: attribute redefined`}},
	{"block twice", "idle {\n}\nidle {\n}", "", "", "", []string{`d/m.hcl:4:1: duplicate idle block: Only one idle block is allowed. Another was defined at d/m.hcl:2,1-5.`}},
	{"variant twice", "variant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}", "", "", "", []string{`duplicate variant "v": first defined on line 2`}},
	{"variant name", "variant \"a:b\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}", "", "", "", []string{`d/m.hcl:2:9: model "m": variant: name is "a:b": must be letters`}},
	{"idle warm", "", `warm = "15"`, "", "", []string{`model "m": idle: warm is "15": must be a duration in whole numbers, such as "90s" or "1h30m", or "0s" for never`}},
	{"idle fraction", "", `warm = "1.5h"`, "", "", []string{`warm is "1.5h": must be a duration in whole numbers, such as "90s" or "1h30m", or "0s" for never`}},
	{"idle negative", "", `warm = "-1h"`, "", "", []string{`warm is "-1h": must be a duration in whole numbers, such as "90s" or "1h30m", or "0s" for never`}},
	{"idle short", "", `warm = "10ms"`, "", "", []string{`warm is "10ms": must be at least 1s`}},
	{"idle long", "", `cold = "9000h"`, "", "", []string{`cold is "9000h": must be at most 8784h`}},
	{"idle number", "", `cold = 15`, "", "", []string{`cold is 15: must be a duration in whole numbers, such as "90s" or "1h30m", or "0s" for never`}},
	{"idle order", "", "warm = \"1h\"\ncold = \"1h\"", "", "", []string{`cold is "1h": must be more than warm ("1h")`}},
	{"idle unknown", "", `hot = "1h"`, "", "", []string{`An argument named "hot" is not expected here`}},
	{"gpu model", "", "", `model = ""`, "", []string{`variant "v": gpu: model is empty`}},
	{"gpu model slash", "", "", `model = "nvidia/gpu/H100"`, "", []string{`gpu: model is "nvidia/gpu/H100"`}},
	{"gpu model number", "", "", `model = 100`, "", []string{`gpu: model is 100: must be a string`}},
	{"gpu count three", "", "", `count = 3`, "", []string{`gpu: count is 3: must be 1, 2, 4, 8 or 16 (the tensor-parallel degree)`}},
	{"gpu count zero", "", "", `count = 0`, "", []string{`gpu: count is 0: must be a whole number from 1 to 16`}},
	{"gpu count many", "", "", `count = 32`, "", []string{`gpu: count is 32`}},
	{"gpu memory and count", "", "", "count = 2\nmemory = \"80GiB\"", "", []string{`gpu: memory is "80GiB", but count is also set: set one of them (the number of GPUs follows from their memory)`}},
	{"gpu memory without weights", "", "", `memory = "80GiB"`, "-weights", []string{`variant "v": weights is missing: set their size, such as "16GiB", or both memory and host_memory`}},
	{"gpu memory too small", "", "", `memory = "64MiB"`, "", []string{`gpu: memory is "64MiB": weights of "1GiB" take "1759091098B", which does not fit on 16 such GPUs: use larger GPUs`}},
	{"gpu memory unit", "", "", `memory = "80"`, "", []string{`gpu: memory is "80": must be a whole number with a unit, such as "16GiB"`}},
	{"memory above the card's", "", "", `memory = "4GiB"`, `memory = "5GiB"`, []string{`variant "v": memory is "5GiB" on each GPU: must be at most gpu: memory ("4GiB")`}},
	{"reach zero", "", "", `reach = 0`, "", []string{`gpu: reach is 0: must be a whole number from 1 to 16`}},
	{"reach too small", "", "", "count = 4\nreach = 2", "", []string{`gpu: reach is 2: must be at least the number of GPUs of a replica (4)`}},
	{"keep_warm negative", "keep_warm = -1", "", "", "", []string{`keep_warm is -1: must be a whole number from 0 to 1000`}},
	{"continuation", `continuation = "yes"`, "", "", "", []string{`d/m.hcl:2:16: model "m": continuation is "yes": must be true or false`}},
	{"pass_authorization", `pass_authorization = 1`, "", "", "", []string{`d/m.hcl:2:22: model "m": pass_authorization is 1: must be true or false`}},
	{"queue length zero", "queue {\n length = 0\n}", "", "", "", []string{`d/m.hcl:3:11: model "m": queue: length is 0: must be a whole number from 1 to 100000`}},
	{"queue wait zero", "queue {\n wait = \"0s\"\n}", "", "", "", []string{`d/m.hcl:3:9: model "m": queue: wait is "0s": must be a duration from "1s" to "24h"`}},
	{"queue first byte", "queue {\n first_byte = \"25h\"\n}", "", "", "", []string{`d/m.hcl:3:15: model "m": queue: first_byte is "25h": must be a duration from "1s" to "24h"`}},
	{"queue length", "queue {\n length = 100001\n}", "", "", "", []string{`queue: length is 100001: must be a whole number from 1 to 100000`}},
	{"goal zero", "slo {\n ttft_p95 = \"0s\"\n}", "", "", "", []string{`d/m.hcl:3:13: model "m": slo: ttft_p95 is "0s": must be a duration from "1ms" to "1h"`}},
	{"goal of a day", "slo {\n itl_p95 = \"24h\"\n}", "", "", "", []string{`d/m.hcl:3:12: model "m": slo: itl_p95 is "24h": must be a duration from "1ms" to "1h"`}},
	{"goal of another share", "slo {\n ttft_p99 = \"2s\"\n}", "", "", "", []string{`ttft_p99`}},
	{"queue wait", "queue {\n wait = 5\n}", "", "", "", []string{`queue: wait is 5: must be a duration from "1s" to "24h"`}},
	{"keep_warm above max", "max = 2\nkeep_warm = 3", "", "", "", []string{`d/m.hcl:3:13: model "m": keep_warm is 3: must be at most max (2)`}},
	{"sleep memory", "", "", "", `sleep_memory = "0B"`, []string{`sleep_memory is "0B": must be more than 0`}},
	{"sleep memory too large", "", "", "", `sleep_memory = "2GiB"`, []string{`sleep_memory is "2GiB": must be at most the memory of a serving replica on each GPU ("1759091098B")`}},
	{"gpu unknown", "", "", `cuont = 1`, "", []string{`Did you mean "count"?`}},
	{"weights missing", "", "", "", "-weights", []string{`variant "v": weights is missing: set their size, such as "16GiB", or both memory and host_memory`}},
	{"weights unit", "", "", "", `weights = "16"`, []string{`weights is "16": must be a whole number with a unit, such as "16GiB"`}},
	{"weights fraction", "", "", "", `weights = "1.5GiB"`, []string{`weights is "1.5GiB": must be a whole number`}},
	{"weights space", "", "", "", `weights = "16 GiB"`, []string{`weights is "16 GiB": must be a whole number`}},
	{"weights sign", "", "", "", `weights = "+1GiB"`, []string{`weights is "+1GiB": must be a whole number`}},
	{"weights zero", "", "", "", `weights = "0B"`, []string{`weights is "0B": must be more than 0`}},
	{"weights huge", "", "", "", `weights = "2000TiB"`, []string{`weights is "2000TiB": must be at most 1024TiB`}},
	{"weights overflow", "", "", "", `weights = "99999999999999999999GiB"`, []string{`weights is "99999999999999999999GiB"`}},
	{"weights number", "", "", "", `weights = 16`, []string{`weights is 16: must be a whole number with a unit, such as "16GiB"`}},
	{"memory", "", "", "", `memory = "lots"`, []string{`memory is "lots"`}},
	{"memory too small", "", "", "", `memory = "512MiB"`, []string{`memory is "512MiB" on each of 1 GPUs: together they must hold at least the weights ("1GiB")`}},
	{"host memory", "", "", "", `host_memory = "lots"`, []string{`host_memory is "lots"`}},
	{"host memory too small", "", "", "", `host_memory = "1MiB"`, []string{`host_memory is "1MiB": must be at least the size of the weights ("1GiB")`}},
	{"cost", "", "", "", `cost = -1`, []string{`cost is -1: must be a number from 0 to 1e+09`}},
	{"cost text", "", "", "", `cost = "1$"`, []string{`cost is "1$": must be a number`}},
	{"slots", "", "", "", `slots = -1`, []string{`slots is -1: must be a whole number from 0`}},
	{"engine", "", "", "", `engine = "vlm"`, []string{`engine is "vlm": must be "vllm", "sglang", "ollama" or "sim"; did you mean "vllm"?`}},
	{"job missing", "", "", "", `-job`, []string{`variant "v": job is missing, and that of engine "vllm", vllm.nomad.hcl, cannot be read: file does not exist`}},
	{"job empty", "", "", "", `job = ""`, []string{`job is empty`}},
	{"job number", "", "", "", `job = 1`, []string{`job is 1: must be the path of a Nomad job file, such as "vllm.nomad.hcl"`}},
	{"job not there", "", "", "", `job = "no.hcl"`, []string{`job is "no.hcl": cannot read the file: file does not exist`}},
	{"job function", "", "", "", `job = flie("no.hcl")`, []string{`There is no function named "flie". Did you mean "file"?`}},
	{"job broken", "", "", "", `job = "broken.hcl"`, []string{`d/broken.hcl:2:13: model "m": variant "v": job: unclosed configuration block`}},
	{"job without job", "", "", "", `job = file("none.hcl")`, []string{`d/none.hcl:1:1: model "m": variant "v": job: no job`}},
	{"job with two", "", "", "", `job = file("two.hcl")`, []string{`d/two.hcl:2:1: model "m": variant "v": job: second job`}},
	{"job in Latin 1", "", "", "", `job = "latin.hcl"`, []string{`job is "d/latin.hcl": must be UTF-8 text`}},
	{"job too large", "", "", "", `job = "large.hcl"`, []string{`must be at most 1MiB`}},
	{"job heredoc broken", "", "", "", "job = <<EOT\njob \"a\" {}\njob\nEOT\n", []string{`d/m.hcl:`, `On line 2 of the job`}},
	{"vars text", "", "", "", `vars = "a=b"`, []string{`vars is "a=b": must be values by variable name, such as { tensor_parallel = 2 }`}},
	{"vars unknown", "", "", "", `vars = { tpp = 2 }`, []string{`d/m.hcl:`, `vars: the job file has no variable "tpp"; did you mean "tp"?`}},
	{"vars reserved", "", "", "", `vars = { remuda_replica = "x" }`, []string{`remuda_replica is set by the controller: leave it out`}},
	{"vars null", "", "", "", `vars = { tp = null }`, []string{`vars: tp is null: set a value, or leave it out`}},
	{"vars twice", "", "", "", "vars = {\ntp = 1\ntp = 2\n}", []string{`vars: duplicate "tp": first set on line 6`}},
	{"vars not a list", "", "", "", `vars = { args = "a, b" }`, []string{`vars: args is "a, b": must be a list or an object`}},
	{"vars reference", "", "", "", `vars = { tp = local.x }`, []string{`vars: tp: variables not allowed`}},
	{"vars missing", "", "", "", `job = "needs.hcl"`, []string{`vars: "path" is missing: the variable has no default in the job file`}},
	{"variant unknown", "", "", "", `weigts = "1GiB"`, []string{`Did you mean "weights"?`}},
	{"gpus instead of a block", "", "", "", `gpu = 2`, []string{`An argument named "gpu" is not expected here. Did you mean to define a block of type "gpu"?`}},
}

func (f fault) source() string {
	var b strings.Builder
	b.WriteString("model \"m\" {\n")
	if f.model != "" {
		b.WriteString(f.model + "\n")
	}
	if f.idle != "" {
		b.WriteString("idle {\n" + f.idle + "\n}\n")
	}
	b.WriteString("variant \"v\" {\n")
	if f.gpu != "" {
		b.WriteString("gpu {\n" + f.gpu + "\n}\n")
	}
	if !strings.HasPrefix(f.variant, "wei") && f.variant != "-weights" {
		b.WriteString("weights = \"1GiB\"\n")
	}
	if !strings.HasPrefix(f.variant, "job") && f.variant != "-job" {
		b.WriteString("job = \"job.hcl\"\n")
	}
	if !strings.HasPrefix(f.variant, "-") {
		b.WriteString(f.variant + "\n")
	}
	b.WriteString("}\n}\n")
	return b.String()
}

type fault struct{ model, idle, gpu, variant string }

func TestEveryFieldWrong(t *testing.T) {
	for _, tc := range faults {
		t.Run(tc.name, func(t *testing.T) {
			src := fault{tc.model, tc.idle, tc.gpu, tc.variant}.source()
			models, err := parse(src)
			require.ErrorIs(t, err, modelfile.ErrInvalid, "%s", src)
			require.Nil(t, models)
			var all hclfault.Faults
			require.ErrorAs(t, err, &all)
			require.Len(t, all, 1, "one mistake is one fault:\n%v", err)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
			require.Regexp(t, `^d/[a-z]+\.hcl:\d+:\d+: `, err.Error())
		})
	}
}

func TestEverythingWrongAtOnce(t *testing.T) {
	_, err := parse(`
model "bad name" {
  min        = -1
  max        = "4"
  replicas   = 1.5
  priority   = 1000
  dedicated  = 1
  failover   = "true"
  management = "auto"
  color      = "red"

  idle {
    warm = "soon"
    cold = 7
  }

  variant "v" {
    gpu {
      model = 7
      count = 6
    }
    weights     = "16"
    memory      = 40
    host_memory = "x"
    cost        = "much"
    slots       = -1
    engine      = "tgi"
    job         = "no.hcl"
    vars        = 3
  }

  variant "v" {
    job = "broken.hcl"
  }
}

model "bad name" {}

model "m" {
  variant "a" {
    weights = "1GiB"
    job     = "job.hcl"
  }
}

model "m" {
  variant "a" {
    weights = "1GiB"
    job     = "broken.hcl"
  }
}
`)
	var all hclfault.Faults
	require.ErrorAs(t, err, &all)
	var at []string
	for _, f := range all {
		at = append(at, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line))
	}
	require.Equal(t, []string{
		"m.hcl:2",
		"m.hcl:3", "m.hcl:4", "m.hcl:5", "m.hcl:6", "m.hcl:7", "m.hcl:8", "m.hcl:9", "m.hcl:10",
		"m.hcl:13", "m.hcl:14",
		"m.hcl:19", "m.hcl:20", "m.hcl:22", "m.hcl:23", "m.hcl:24", "m.hcl:25", "m.hcl:26", "m.hcl:27", "m.hcl:28", "m.hcl:29",
		"m.hcl:32", "m.hcl:32", // the name and the missing weights
		"m.hcl:37", "m.hcl:37", // the name, no variant
		"m.hcl:46", // the name
		"broken.hcl:2", "broken.hcl:2",
	}, at, "%v", err)
	require.Equal(t, len(all), len(strings.Split(err.Error(), "\n")), "one line for each")
}

func TestWrongFiles(t *testing.T) {
	for _, tc := range []struct{ name, src, want string }{
		{"empty", "", `d/m.hcl:1:1: no model: at least one block is required, such as model "llama-3-8b" { … }`},
		{"only a comment", "# nothing\n", "no model"},
		{"not HCL", "{]", "d/m.hcl:1:1"},
		{"unclosed", "model \"m\" {", "unclosed"},
		{"top-level argument", "min = 1\n", `d/m.hcl:1:1: unsupported argument`},
		{"other block", "job \"x\" {}\n", `no model: this is a Nomad job file`},
		{"no label", "model {}\n", `missing name for model`},
		{"two labels", "model \"a\" \"b\" {}\n", `extraneous label for model`},
		{"empty name", "model \"\" {}\n", `model: name is empty`},
		{"space", "model \"a b\" {}\n", `model: name is "a b"`},
		{"colon last", "model \"a:\" {}\n", `model: name is "a:"`},
		{"two slashes", "model \"a//b\" {}\n", `model: name is "a//b"`},
		{"dots", "model \"../x\" {}\n", `model: name is "../x"`},
		{"umlaut", "model \"ä\" {}\n", `model: name is "ä"`},
		{"long", "model \"" + strings.Repeat("x", 129) + "\" {}\n", "name is 129 bytes: must be at most 128 bytes"},
		{"too large", strings.Repeat("#", 1<<20+1), "must be at most 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(tc.src)
			require.ErrorIs(t, err, modelfile.ErrInvalid)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
