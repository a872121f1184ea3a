package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"

	"remuda/controller/modelfile"
	"remuda/jobs"
)

// newModel are the answers of model init.
type newModel struct {
	name, engine, source, image, weights, memory, gpus, gpuModel, consul, failover, idle string
}

// initQuestion is a question of model init. Its name is its flag's.
type initQuestion struct {
	flag, text string
	to         *string
	standard   string
	// when, if set, reports whether the answers before make the question useful.
	when func() bool
}

func (m *newModel) questions() []initQuestion {
	container := func() bool { return m.engine == "vllm" || m.engine == "sglang" }
	return []initQuestion{
		{flag: "name", text: "`name` of the model, which clients send", to: &m.name},
		{flag: "engine", text: "`engine`: vllm, sglang, ollama or sim (the simulated one)", to: &m.engine, standard: "vllm"},
		{flag: "model", text: "where the node has the `model`: for vllm and sglang a directory of the host volume \"models\", for ollama the path of a GGUF file", to: &m.source, when: func() bool { return m.engine != "sim" }},
		{flag: "weights", text: "`size` of the weights, such as 16GiB", to: &m.weights},
		{flag: "memory", text: "`size` of the memory that the engine takes of each GPU: for vllm and sglang nine tenths of the GPU, such as 72GiB of 80 GiB; empty: a little more than the weights", to: &m.memory},
		{flag: "gpus", text: "`number` of GPUs of an engine: 1, 2, 4, 8 or 16", to: &m.gpus, standard: "1"},
		{flag: "gpu", text: "`name` of the GPU model, as in \"nomad node status -verbose\"; empty: any", to: &m.gpuModel},
		{flag: "image", text: "the engine's container `image`; empty: the one that was tested", to: &m.image, when: container},
		{flag: "consul", text: "`address` of the node's Consul agent, for an engine in a container; others find it by CONSUL_HTTP_ADDR of the Nomad client", to: &m.consul, standard: "127.0.0.1:8500", when: container},
		{flag: "failover", text: "yes for a second engine beside each, which takes over when it dies, or no", to: &m.failover, standard: "no"},
		{flag: "idle", text: "`time` without requests after which the model leaves its GPU, such as 15m; empty: never", to: &m.idle},
	}
}

func (p *program) modelInitVerb() verb {
	return verb{
		synopsis: "Write a first model file",
		usage:    "[flags]",
		about: `Writes a model file of about ten lines. Without flags for the model it asks for each setting; with
any of them it asks nothing, and takes the defaults of the others. The job file is the one that
comes with remuda for the engine: "remuda model render" prints it.`,
		anywhere: true,
		setup: func(fs *flag.FlagSet) func(context.Context, []string) error {
			m := &newModel{}
			out := fs.String("o", "", "the `file` to write; - is standard output (default: NAME.model.hcl)")
			questions := m.questions()
			for _, q := range questions {
				fs.StringVar(q.to, q.flag, q.standard, q.text)
			}
			return func(_ context.Context, args []string) error {
				if err := noArgs(args); err != nil {
					return err
				}
				given := false
				fs.Visit(func(f *flag.Flag) { given = given || f.Name != "o" })
				if !given {
					if err := p.askAll(questions); err != nil {
						return err
					}
				}
				return p.writeModel(*m, *out)
			}
		},
	}
}

// askAll asks on standard error, so that the file may go to standard output.
func (p *program) askAll(questions []initQuestion) error {
	in := bufio.NewScanner(p.stdin)
	for _, q := range questions {
		if q.when != nil && !q.when() {
			continue
		}
		text := strings.ReplaceAll(q.text, "`", "")
		if q.standard != "" {
			text += " [" + q.standard + "]"
		}
		fmt.Fprintf(p.stderr, "%s\n> ", wrap("", text))
		if !in.Scan() {
			return cmp.Or(in.Err(), errors.New("standard input ended before all questions were answered"))
		}
		*q.to = cmp.Or(strings.TrimSpace(in.Text()), q.standard)
	}
	return nil
}

// writeModel checks the answers as a model file, and writes it.
func (p *program) writeModel(m newModel, path string) error {
	text, err := m.file()
	if err != nil {
		return err
	}
	path = cmp.Or(path, strings.NewReplacer("/", "-", ":", "-").Replace(m.name)+".model.hcl")
	if _, _, err := modelfile.Read([]modelfile.File{{Name: path, Text: text}}, jobs.Files, nil); err != nil {
		return fmt.Errorf("the answers make no model file: %w", err)
	}
	if path == "-" {
		_, err := fmt.Fprint(p.stdout, text)
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: choose another file with -o", path)
	}
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close() // The first error counts.
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s is written. Apply it with \"remuda model apply %s\".\n", path, path)
	return nil
}

// file is the model file.
func (m newModel) file() (string, error) {
	gpus, err := strconv.Atoi(m.gpus)
	if err != nil {
		return "", usagef("-gpus is %q: must be 1, 2, 4, 8 or 16", m.gpus)
	}
	var pair string
	switch m.failover {
	case "yes", "true":
		pair = "  failover = true\n"
	case "no", "false", "":
	default:
		return "", usagef("-failover is %q: must be yes or no", m.failover)
	}
	if m.name == "" || m.weights == "" {
		return "", usagef("-name and -weights are required")
	}
	var b strings.Builder
	quote := modelfile.Quote
	fmt.Fprintf(&b, "model %s {\n  replicas = 1\n%s", quote(m.name), pair)
	if m.idle != "" {
		fmt.Fprintf(&b, "  idle { cold = %s }\n", quote(m.idle))
	}
	fmt.Fprintf(&b, "\n  variant %s {\n    engine = %s\n    weights = %s\n", quote(m.engine), quote(m.engine), quote(m.weights))
	if m.memory != "" {
		fmt.Fprintf(&b, "    memory = %s\n", quote(m.memory))
	}
	b.WriteString("\n    gpu {\n")
	if m.gpuModel != "" {
		fmt.Fprintf(&b, "      model = %s\n", quote(m.gpuModel))
	}
	fmt.Fprintf(&b, "      count = %d\n    }\n\n    vars = {\n", gpus)
	for _, v := range m.vars() {
		if v.value != "" {
			fmt.Fprintf(&b, "      %s = %s\n", v.name, quote(v.value))
		}
	}
	b.WriteString("    }\n  }\n}\n")
	return string(hclwrite.Format([]byte(b.String()))), nil
}

type modelVar struct{ name, value string }

// vars are the values of variables of the engine's job file.
func (m newModel) vars() []modelVar {
	switch m.engine {
	case "ollama":
		return []modelVar{{"gguf", m.source}}
	case "sim":
		return []modelVar{{"weights", m.weights}}
	}
	return []modelVar{{"consul", m.consul}, {"weights", m.source}, {"image", m.image}}
}
