package modelfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"

	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/bytesize"
	"remuda/internal/hclfault"
	"remuda/internal/replica"
)

// Defaults of what a model file leaves out.
const (
	DefaultPriority   = 50                   // in the middle, as Nomad's
	DefaultManagement = state.ManagementFull // the autoscaler scales between min and max
	DefaultEngine     = "vllm"
)

// Bounds of numbers. The upper ones are there to catch mistakes.
const (
	MaxReplicas = 1000
	MaxPriority = 100
	MaxSlots    = 1 << 20
	maxCost     = 1e9
	maxGPUs     = 16 // of a node
)

// maxFile is far more than people write.
const maxFile = 1 << 20

// ReadFile reads a job file that a model file names. path is as the model file has
// it, joined to the model file's directory where it is relative.
type ReadFile func(path string) ([]byte, error)

// Load reads a model file and the job files that it names from disk.
func Load(path string) ([]state.Model, error) {
	src, err := readBounded(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read the model file: %w", err)
	}
	return Parse(path, src, func(path string) ([]byte, error) { return readBounded(path, maxJob) })
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(raw)) > limit {
		err = fmt.Errorf("%s is larger than %s", path, bytesize.Format(limit))
	}
	return raw, err
}

// Parse reads a model file whose content is at hand; filename is for messages and
// for finding job files. With read nil no file can be named. Its error wraps
// ErrInvalid and hclfault.Faults, with every fault.
func Parse(filename string, src []byte, read ReadFile) ([]state.Model, error) {
	p := &parser{faults: hclfault.Collector{File: filename}, read: read, dir: filepath.Dir(filename)}
	p.file(filename, src)
	if err := p.faults.Err(ErrInvalid); err != nil {
		return nil, err
	}
	for i := range p.models {
		hashes(&p.models[i])
	}
	return p.models, nil
}

type parser struct {
	faults hclfault.Collector
	read   ReadFile
	dir    string
	models []state.Model
}

func (p *parser) file(filename string, src []byte) {
	start := hcl.Range{Filename: filename, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > maxFile {
		p.add(start, "file is %d bytes: must be at most %s", len(src), bytesize.Format(maxFile))
		return
	}
	file, diags := hclsyntax.ParseConfig(src, filename, hcl.InitialPos)
	p.diagnostics("", diags)
	if diags.HasErrors() {
		return // what a broken file seems to say is not worth complaining about
	}
	content, diags := file.Body.Content(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "model", LabelNames: []string{"name"}}}})
	p.diagnostics("", diags)
	if len(content.Blocks) == 0 && !diags.HasErrors() {
		p.add(start, "no model: at least one block is required, such as model \"llama-3-8b\" { … }")
	}
	first := map[string]hcl.Range{}
	for _, b := range content.Blocks {
		name := b.Labels[0]
		if err := replica.CheckModel(name); err != nil {
			p.add(b.LabelRanges[0], "model: name %v", err)
		} else if at, dup := first[name]; dup {
			p.add(b.LabelRanges[0], "duplicate model %q: first defined on line %d", name, at.Start.Line)
		} else {
			first[name] = b.LabelRanges[0]
		}
		p.models = append(p.models, p.model(b))
	}
}

func (p *parser) model(b *hcl.Block) state.Model {
	m := state.Model{Name: b.Labels[0], Priority: DefaultPriority, Management: DefaultManagement}
	s := p.scope(b, fmt.Sprintf("model %q", hclfault.Clip(m.Name)),
		[]string{"min", "max", "replicas", "priority", "dedicated", "failover", "management", "keep_warm", "continuation"},
		hcl.BlockHeaderSchema{Type: "idle"}, hcl.BlockHeaderSchema{Type: "variant", LabelNames: []string{"name"}})
	// ok is also true of what was left out.
	count := func(name string, to *int, low, high int64) (given, ok bool) {
		n, given, ok := s.number(name, low, high)
		if ok {
			*to = int(n)
		}
		return given, ok || !given
	}
	_, minOK := count("min", &m.Min, 0, MaxReplicas)
	maxGiven, maxOK := count("max", &m.Max, 1, MaxReplicas)
	replicasGiven, replicasOK := count("replicas", &m.Replicas, 0, MaxReplicas)
	// Left out, replicas is one or the minimum, and max is the largest of them.
	if !replicasGiven {
		m.Replicas = max(m.Min, 1)
	}
	if !maxGiven {
		m.Max = max(m.Min, m.Replicas, 1)
	}
	switch {
	case minOK && maxGiven && maxOK && m.Min > m.Max:
		s.fault("min", "is %d: must be at most max (%d)", m.Min, m.Max)
	case !replicasGiven || !replicasOK:
	case minOK && m.Replicas < m.Min:
		s.fault("replicas", "is %d: must be at least min (%d)", m.Replicas, m.Min)
	case maxGiven && maxOK && m.Replicas > m.Max:
		s.fault("replicas", "is %d: must be at most max (%d)", m.Replicas, m.Max)
	}
	count("priority", &m.Priority, 0, MaxPriority)
	if given, ok := count("keep_warm", &m.KeepWarm, 0, MaxReplicas); given && ok && maxOK && replicasOK && minOK && m.KeepWarm > m.Max {
		s.fault("keep_warm", "is %d: must be at most max (%d)", m.KeepWarm, m.Max)
	}
	s.flag("dedicated", &m.Dedicated)
	s.flag("failover", &m.Failover)
	s.flag("continuation", &m.Continuation)
	s.oneOf("management", (*string)(&m.Management), string(state.ManagementDisabled), string(state.ManagementManual),
		string(state.ManagementUpscaling), string(state.ManagementFull))
	if idle := s.single("idle"); idle != nil {
		i := p.scope(idle, s.path+": idle", []string{"warm", "cold"})
		warm, cold := i.duration("warm", &m.IdleWarm), i.duration("cold", &m.IdleCold)
		// Both count from the last request.
		if warm && cold && m.IdleWarm > 0 && m.IdleCold > 0 && m.IdleCold <= m.IdleWarm {
			i.fault("cold", "is %q: must be more than warm (%q)", formatDuration(m.IdleCold), formatDuration(m.IdleWarm))
		}
	}
	first := map[string]hcl.Range{}
	for _, v := range s.blocks["variant"] {
		name := v.Labels[0]
		if err := replica.CheckVariant(name); err != nil {
			p.add(v.LabelRanges[0], "%s: variant: name %v", s.path, err)
		} else if at, dup := first[name]; dup {
			p.add(v.LabelRanges[0], "%s: duplicate variant %q: first defined on line %d", s.path, name, at.Start.Line)
		} else {
			first[name] = v.LabelRanges[0]
		}
		m.Variants = append(m.Variants, p.variant(s.path, v))
	}
	if len(s.blocks["variant"]) == 0 && !s.broken {
		p.add(b.DefRange, "%s: no variant: at least one block is required, such as variant \"h100\" { … }", s.path)
	}
	return m
}

func (p *parser) variant(model string, b *hcl.Block) state.Variant {
	v := state.Variant{Name: b.Labels[0], GPUs: 1, Engine: DefaultEngine}
	s := p.scope(b, fmt.Sprintf("%s: variant %q", model, hclfault.Clip(v.Name)),
		[]string{"weights", "memory", "host_memory", "sleep_memory", "cost", "slots", "engine", "job", "vars"}, hcl.BlockHeaderSchema{Type: "gpu"})
	gpusOK := true
	g := p.gpu(s, &v, &gpusOK)
	weights, weightsGiven, weightsOK := s.size("weights")
	memory, memoryGiven, memoryOK := s.size("memory")
	host, hostGiven, hostOK := s.size("host_memory")
	sleep, _, sleepOK := s.size("sleep_memory")
	v.Weights, v.Memory, v.HostMemory, v.SleepMemory = weights, memory, host, sleep
	if g != nil {
		p.cards(s, g, &v, &gpusOK)
	}
	if weightsOK && !memoryGiven {
		v.Memory = perGPU(ReplicaSize(weights), v.GPUs)
	}
	if weightsOK && !hostGiven {
		v.HostMemory = ReplicaSize(weights)
	}
	switch {
	case !weightsGiven && (!memoryGiven || !hostGiven):
		if !s.broken {
			p.add(b.DefRange, "%s: weights is missing: set their size, such as \"16GiB\", or both memory and host_memory", s.path)
		}
	case weightsOK && memoryGiven && memoryOK && gpusOK && memory*int64(v.GPUs) < weights:
		s.fault("memory", "is %q on each of %d GPUs: together they must hold at least the weights (%q)", bytesize.Format(memory), v.GPUs, bytesize.Format(weights))
	}
	if weightsOK && hostOK && hostGiven && host < weights {
		s.fault("host_memory", "is %q: must be at least the size of the weights (%q)", bytesize.Format(host), bytesize.Format(weights))
	}
	if sleepOK && gpusOK && v.Memory > 0 && sleep > v.Memory {
		s.fault("sleep_memory", "is %q: must be at most the memory of a serving replica on each GPU (%q)", bytesize.Format(sleep), bytesize.Format(v.Memory))
	}
	v.Cost = float64(v.GPUs)
	if c, ok := s.float("cost", 0, maxCost); ok {
		v.Cost = c
	}
	if n, _, ok := s.number("slots", 0, MaxSlots); ok {
		v.Slots = int(n)
	}
	// The engine APIs that the shim speaks (remuda engine -dialect).
	s.oneOf("engine", &v.Engine, "vllm", "ollama")
	v.Vars = s.vars("vars")
	p.job(s, &v)
	return v
}

// gpu reads a variant's gpu block, nil where there is none. What it says of numbers is in
// v, unless ok is false then.
func (p *parser) gpu(s *scope, v *state.Variant, ok *bool) *scope {
	b := s.single("gpu")
	if b == nil {
		return nil
	}
	g := p.scope(b, s.path+": gpu", []string{"model", "count", "reach", "memory"})
	if text, ok := g.text("model"); ok {
		if err := checkGPUModel(text); err != nil {
			g.fault("model", "%v", err)
		}
		v.GPUModel = text
	}
	n, given, valid := g.number("count", 1, maxGPUs)
	switch {
	case valid && !validDegree(n):
		g.fault("count", "is %d: must be 1, 2, 4, 8 or 16 (the tensor-parallel degree)", n)
		*ok = false
	case valid:
		v.GPUs = int(n)
	default:
		*ok = !given
	}
	return g
}

// cards works out how many GPUs a variant needs where the block says how large each is and
// not how many, and reads its reach, for which that has to be known.
func (p *parser) cards(s, g *scope, v *state.Variant, ok *bool) {
	card, given, valid := g.size("memory")
	switch {
	case !given:
	case !valid:
		*ok = false
	case g.attrs["count"] != nil:
		g.fault("memory", "is %q, but count is also set: set one of them (the number of GPUs follows from their memory)", bytesize.Format(card))
		*ok = false
	case v.Weights == 0:
		*ok = false
		// Without those, the missing weights are told anyway.
		if s.attrs["weights"] == nil && s.attrs["memory"] != nil && s.attrs["host_memory"] != nil {
			g.fault("memory", "is %q, but weights is missing: set weights, from which the number of GPUs follows, or set count", bytesize.Format(card))
		}
	default:
		n, _ := placement.Sizing(v.Weights, card)
		if n == 0 {
			g.fault("memory", "is %q: weights of %q take %q, which does not fit on %d such GPUs: use larger GPUs", bytesize.Format(card), bytesize.Format(v.Weights), bytesize.Format(ReplicaSize(v.Weights)), maxGPUs)
			*ok = false
			break
		}
		v.GPUs = n
		if v.Memory > card {
			s.fault("memory", "is %q on each GPU: must be at most gpu: memory (%q)", bytesize.Format(v.Memory), bytesize.Format(card))
		}
	}
	n, _, valid := g.number("reach", 1, maxGPUs)
	switch {
	case !valid || !*ok:
	case int(n) < v.GPUs:
		g.fault("reach", "is %d: must be at least the number of GPUs of a replica (%d)", n, v.GPUs)
	case int(n) > v.GPUs:
		v.Reach = int(n)
	}
}

// checkGPUModel accepts what can be a device group's name in Nomad.
func checkGPUModel(name string) error {
	if name == "" {
		return errors.New("is empty: must be the GPU model shown by \"nomad node status -verbose\"; leave it out for any model")
	}
	if len(name) > 128 {
		return fmt.Errorf("is %d bytes: must be at most 128 bytes", len(name))
	}
	for _, r := range name {
		if r < ' ' || r == 0x7f || r == '/' {
			return fmt.Errorf("is %q: must be the GPU model shown by \"nomad node status -verbose\", without %q", hclfault.Clip(name), r)
		}
	}
	return nil
}

// job reads the variant's job file and checks it as far as Nomad is not needed.
func (p *parser) job(s *scope, v *state.Variant) {
	attr := s.attrs["job"]
	if attr == nil {
		if !s.broken {
			p.add(s.at, "%s: job is missing: must be the path of a Nomad job file, such as \"vllm.nomad.hcl\"", s.path)
		}
		return
	}
	value, ok := s.valueIn(attr, &hcl.EvalContext{Functions: map[string]function.Function{"file": fileFunction}})
	if !ok {
		return
	}
	path := ""
	switch {
	case value.Type().Equals(fileType):
		path = *value.EncapsulatedValue().(*string)
	case isText(value):
		path = value.AsString()
	default:
		s.fault("job", "is %s: must be the path of a Nomad job file, such as \"vllm.nomad.hcl\"", hclfault.Show(value))
		return
	}
	source, filename, inline := path, path, multiline(path) && !value.Type().Equals(fileType)
	if inline { // the job itself, in a heredoc
		filename = "job"
	} else {
		if path == "" {
			s.fault("job", "is empty: must be the path of a Nomad job file, such as \"vllm.nomad.hcl\"")
			return
		}
		if !filepath.IsAbs(path) {
			filename = filepath.Join(p.dir, path)
		}
		if p.read == nil {
			s.fault("job", "is %q: must be the job itself, in a heredoc: files cannot be read here", hclfault.Clip(path))
			return
		}
		raw, err := p.read(filename)
		if err != nil {
			s.fault("job", "is %q: cannot read the file: %v", hclfault.Clip(path), err)
			return
		}
		source = string(raw)
	}
	if len(source) > maxJob {
		s.fault("job", "is %d bytes: must be at most %s", len(source), bytesize.Format(maxJob))
		return
	}
	if !utf8.ValidString(source) {
		s.fault("job", "is %q: must be UTF-8 text", hclfault.Clip(filename))
		return
	}
	// HCL composes what it reads (NFC), so that equal texts are equal bytes.
	v.Job = cty.StringVal(tidyJob(source)).AsString()
	vars, diags := JobVariables(filename, v.Job)
	if diags.HasErrors() {
		for _, d := range diags {
			if inline && d.Subject != nil {
				d.Detail = fmt.Sprintf("On line %d of the job: %s", d.Subject.Start.Line, d.Detail)
				d.Subject = &attr.Range
			}
		}
		p.diagnostics(s.path+": job: ", diags)
		return
	}
	p.checkVars(s, v, vars)
}

// checkVars holds the values that a variant gives against what its job file
// declares.
func (p *parser) checkVars(s *scope, v *state.Variant, declared []JobVariable) {
	byName := map[string]JobVariable{}
	var names []string
	for _, d := range declared {
		byName[d.Name] = d
		if !reserved(d.Name) {
			names = append(names, d.Name)
		}
	}
	if !s.varsOK {
		return
	}
	for name, at := range s.varRanges {
		d, known := byName[name]
		switch {
		case reserved(name):
			p.add(at, "%s: vars: %s is set by the controller: leave it out", s.path, name)
		case !known && len(names) == 0:
			p.add(at, "%s: vars: the job file has no variable %q; it has none", s.path, hclfault.Clip(name))
		case !known:
			p.add(at, "%s: vars: the job file has no variable %q%s", s.path, hclfault.Clip(name), suggest(name, names))
		case d.Composite:
			if !compositeExpression(v.Vars[name]) {
				p.add(at, "%s: vars: %s is %q: must be a list or an object, as declared in the job file", s.path, name, hclfault.Clip(v.Vars[name]))
			}
		}
	}
	for _, d := range declared {
		if _, given := v.Vars[d.Name]; d.Required && !given && !reserved(d.Name) {
			p.add(s.rangeOf("vars"), "%s: vars: %q is missing: the variable has no default in the job file", s.path, d.Name)
		}
	}
}

func reserved(name string) bool {
	for _, r := range ReservedVars() {
		if r == name {
			return true
		}
	}
	return false
}

// compositeExpression tells whether a text is a list or an object in HCL.
func compositeExpression(text string) bool {
	expr, diags := hclsyntax.ParseExpression([]byte(text), "", hcl.InitialPos)
	if diags.HasErrors() {
		return false
	}
	v, diags := expr.Value(nil)
	return !diags.HasErrors() && (v.Type().IsTupleType() || v.Type().IsObjectType())
}
