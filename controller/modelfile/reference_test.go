package modelfile

import (
	"fmt"
	"testing"

	"remuda/controller/state"
	"remuda/internal/testkit/reference"
)

func TestReferenceConfiguration(t *testing.T) {
	read := func(string) ([]byte, error) {
		return []byte("variable \"weights_dir\" { default = \"\" }\njob \"m\" {\n  group \"replica\" {}\n}\n"), nil
	}
	parse := func(model, variant map[string]string) (state.Model, error) {
		if model["scaling.evaluation_interval"] != "" && model["scaling.strategy"] == "" {
			model = map[string]string{"scaling.evaluation_interval": model["scaling.evaluation_interval"], "scaling.strategy": `"remuda-capacity"`}
		}
		models, err := Parse("m.hcl", fmt.Appendf(nil, "model \"m\" {\n%svariant \"v\" {\n%s}\n}\n", reference.HCL(model), reference.HCL(variant)), read)
		if err != nil {
			return state.Model{}, err
		}
		m := models[0]
		m.Source, m.Hash, m.Variants[0].Hash = "", "", ""
		return m, nil
	}
	needed := map[string]string{"weights": `"16GiB"`, "job": `"a.hcl"`}
	models := reference.Keys[state.Model]{
		Names:    reference.Names[modelBlock](),
		Parse:    func(values map[string]string) (state.Model, error) { return parse(values, needed) },
		Examples: map[string]string{"management": `"manual"`, "scaling.strategy": `"remuda-hpa"`},
		Docs: map[string]string{
			"replicas":                    "How many replicas a new model begins with, between `min` and `max`. Another number in a later file scales the model.",
			"queue.length":                "How many requests for the model may wait at a gateway.",
			"queue.wait":                  "How long a request for the model waits at most.",
			"queue.first_byte":            "How long an engine may take from the request until the first byte of its answer.",
			"slo.ttft_p95":                "How long the first token of 95 of 100 requests may take. `remuda-capacity` and `remuda-predictive` keep it.",
			"slo.itl_p95":                 "How long the time between two tokens may be, for 95 of 100. `remuda-capacity` and `remuda-predictive` keep it.",
			"scaling.strategy":            "The strategy of the model's policy: `remuda-capacity`, `remuda-hpa`, `remuda-utilization` or `remuda-predictive`. The other attributes of the block are the strategy's keys.",
			"scaling.evaluation_interval": "How often the policy is evaluated.",
			"update.surge":                "How many replicas beyond its number the model may have during a rollout. With 0 a replica goes before its successor is placed.",
			"update.min_available":        "How many of the model's replicas a rollout leaves serving, as a number or a percentage, rounded up.",
		},
		Derived: map[string]string{"slo.ttft_p95": "no goal", "slo.itl_p95": "no goal", "scaling.strategy": "required", "scaling.evaluation_interval": "`" + reference.Duration(DefaultInterval) + "`", "queue.length": "the gateway's `queue.length`", "queue.wait": "the gateway's `queue.wait`", "queue.first_byte": "the gateway's `timeouts.first_byte`", "update.surge": "1", "update.min_available": "all; all but one if `surge` is 0"},
	}
	variants := reference.Keys[state.Model]{
		Names: reference.Names[variantBlock](),
		Given: needed,
		Parse: func(values map[string]string) (state.Model, error) { return parse(nil, values) },
		Examples: map[string]string{
			"engine": `"ollama"`, "job": "\"job \\\"other\\\" {\\n  group \\\"replica\\\" {}\\n}\\n\"", "vars": `{ weights_dir = "/models" }`, "gpu.memory": `"12GiB"`,
		},
		Docs: map[string]string{
			"job":        "The variant's own Nomad job file, in place of the one that comes with remuda for its engine.",
			"vars":       "The values of the job file's variables by their names.",
			"gpu.memory": "The memory of each GPU, in place of a count: the number of GPUs follows from the weights.",
		},
		Derived: map[string]string{"memory": "from `weights`", "host_memory": "from `weights`", "cost": "`gpu.count`", "gpu.memory": "", "job": "that of `engine`", "gpu.reach": "`gpu.count`"},
	}
	reference.Section(t, "configuration.md", "model", "## Model file\n\nThe file of `remuda model apply FILE`, in HCL: any number of blocks `model \"NAME\"`, each with one or more blocks `variant \"NAME\"`.\n\n"+
		reference.Source(t, "controller/modelfile").Overview(t, "It guarantees")+"\n### Blocks model \"NAME\"\n\n"+models.Table(t)+"\n### Blocks variant \"NAME\" of a model\n\n"+variants.Table(t))
}
