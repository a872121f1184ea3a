package modelfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"

	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/bytesize"
	"remuda/internal/hclfault"
	"remuda/internal/replica"
)

// ErrInvalid is wrapped by every error about the content of a model file.
var ErrInvalid = errors.New("invalid model file")

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
	MaxQueue    = 100_000 // requests that wait at a gateway
	maxCost     = 1e9
	maxGPUs     = 16 // of a node
)

// maxFile is far more than people write.
const maxFile = 1 << 20

// ReadFile reads a job file that a model file names. path is as the model file has
// it, joined to the model file's directory where it is relative.
type ReadFile func(path string) ([]byte, error)

func newParser(filename string, read ReadFile, check CheckScaling) *parser {
	return &parser{Collector: hclfault.Collector{File: filename}, read: read, check: check, dir: filepath.Dir(filename), names: map[string]hcl.Range{}}
}

func (p *parser) parse(src []byte) ([]state.Model, error) {
	p.file(src)
	if err := p.Err(ErrInvalid); err != nil {
		return nil, err
	}
	for i := range p.models {
		hashes(&p.models[i])
	}
	return p.models, nil
}

type parser struct {
	hclfault.Collector
	read   ReadFile
	check  CheckScaling
	dir    string
	models []state.Model
	// names are where the names of the models are.
	names map[string]hcl.Range
	// diags are what HCL itself found, as misspelt names.
	diags hcl.Diagnostics
}

// file is a model file as it is written.
type file struct {
	Models []modelBlock `hcl:"model,block"`
}

type modelBlock struct {
	Name         string         `hcl:"name,label"`
	NameAt       hcl.Range      `hcl:"name,label_range"`
	At           hcl.Range      `hcl:",def_range"`
	Body         hcl.Body       `hcl:",body"`
	Min          *hcl.Attribute `hcl:"min,optional"`
	Max          *hcl.Attribute `hcl:"max,optional"`
	Replicas     *hcl.Attribute `hcl:"replicas,optional"`
	Priority     *hcl.Attribute `hcl:"priority,optional"`
	Dedicated    *hcl.Attribute `hcl:"dedicated,optional"`
	Failover     *hcl.Attribute `hcl:"failover,optional"`
	Management   *hcl.Attribute `hcl:"management,optional"`
	KeepWarm     *hcl.Attribute `hcl:"keep_warm,optional"`
	Continuation *hcl.Attribute `hcl:"continuation,optional"`
	PassAuth     *hcl.Attribute `hcl:"pass_authorization,optional"`
	Idle         *idleBlock     `hcl:"idle,block"`
	Queue        *queueBlock    `hcl:"queue,block"`
	Update       *updateBlock   `hcl:"update,block"`
	SLO          *sloBlock      `hcl:"slo,block"`
	Scaling      *scalingBlock  `hcl:"scaling,block"`
	Variants     []variantBlock `hcl:"variant,block"`
}

type idleBlock struct {
	Warm *hcl.Attribute `hcl:"warm,optional"`
	Cold *hcl.Attribute `hcl:"cold,optional"`
}

type queueBlock struct {
	Length    *hcl.Attribute `hcl:"length,optional"`
	Wait      *hcl.Attribute `hcl:"wait,optional"`
	FirstByte *hcl.Attribute `hcl:"first_byte,optional"`
}

type updateBlock struct {
	Surge        *hcl.Attribute `hcl:"surge,optional"`
	MinAvailable *hcl.Attribute `hcl:"min_available,optional"`
}

type sloBlock struct {
	TTFT *hcl.Attribute `hcl:"ttft_p95,optional"`
	ITL  *hcl.Attribute `hcl:"itl_p95,optional"`
}

type variantBlock struct {
	Name         string         `hcl:"name,label"`
	NameAt       hcl.Range      `hcl:"name,label_range"`
	At           hcl.Range      `hcl:",def_range"`
	Body         hcl.Body       `hcl:",body"`
	Weights      *hcl.Attribute `hcl:"weights,optional"`
	Memory       *hcl.Attribute `hcl:"memory,optional"`
	HostMemory   *hcl.Attribute `hcl:"host_memory,optional"`
	SleepMemory  *hcl.Attribute `hcl:"sleep_memory,optional"`
	SharedMemory *hcl.Attribute `hcl:"shared_memory,optional"`
	Cost         *hcl.Attribute `hcl:"cost,optional"`
	Slots        *hcl.Attribute `hcl:"slots,optional"`
	Engine       *hcl.Attribute `hcl:"engine,optional"`
	Job          *hcl.Attribute `hcl:"job,optional"`
	Vars         *hcl.Attribute `hcl:"vars,optional"`
	GPU          *gpuBlock      `hcl:"gpu,block"`
}

type gpuBlock struct {
	Model  *hcl.Attribute `hcl:"model,optional"`
	Count  *hcl.Attribute `hcl:"count,optional"`
	Reach  *hcl.Attribute `hcl:"reach,optional"`
	Memory *hcl.Attribute `hcl:"memory,optional"`
}

// otherFile returns which kind of file this is, if it is one that people take for a model file.
func otherFile(body hcl.Body) string {
	schema := &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "job", LabelNames: []string{"name"}}, {Type: "pipeline", LabelNames: []string{"name"}}}}
	content, _, _ := body.PartialContent(schema)
	switch {
	case len(content.Blocks) == 0:
		return ""
	case content.Blocks[0].Type == "job":
		return "a Nomad job file: name it in a variant of a model file (job = file(\"…\"))"
	}
	return "a pipeline file: apply it with \"remuda pipeline apply\""
}

func (p *parser) file(src []byte) {
	body := p.Body(src, maxFile)
	if body == nil {
		return
	}
	var f file
	p.diags = gohcl.DecodeBody(body, nil, &f)
	if what := otherFile(body); what != "" && len(f.Models) == 0 {
		p.Add(hcl.Range{}, "no model: this is %s", what)
		return
	}
	p.Diagnostics("", p.diags)
	if len(f.Models) == 0 && !p.diags.HasErrors() {
		p.Add(hcl.Range{}, "no model: at least one block is required, such as model \"llama-3-8b\" { … }")
	}
	for i := range f.Models {
		b := &f.Models[i]
		if err := replica.CheckModel(b.Name); err != nil {
			p.Add(b.NameAt, "model: name %v", err)
		} else if at, dup := p.names[b.Name]; dup {
			p.Add(b.NameAt, "duplicate model %q: first defined on line %d", b.Name, at.Start.Line)
		} else {
			p.names[b.Name] = b.NameAt
		}
		p.models = append(p.models, p.model(b))
	}
	p.sources(src, f.Models)
}

func (p *parser) model(b *modelBlock) state.Model {
	m := state.Model{Name: b.Name, Priority: DefaultPriority, Management: DefaultManagement}
	s := p.scope(fmt.Sprintf("model %q: ", hclfault.Clip(m.Name)), b.At, b.Body)
	minOK := s.number(b.Min, &m.Min, 0, MaxReplicas)
	maxOK := s.number(b.Max, &m.Max, 1, MaxReplicas)
	var replicas int
	replicasOK := s.number(b.Replicas, &replicas, 0, MaxReplicas)
	// Left out, replicas is one or the minimum, and max is the largest number there is.
	if b.Replicas == nil {
		replicas = max(m.Min, 1)
	} else if replicasOK {
		m.FileReplicas = &replicas
	}
	m.Desired = state.Any(replicas)
	if b.Max == nil {
		m.Max = MaxReplicas
	}
	switch {
	case minOK && b.Max != nil && maxOK && m.Min > m.Max:
		s.fault(b.Min, "is %d: must be at most max (%d)", m.Min, m.Max)
	case b.Replicas == nil || !replicasOK:
	case minOK && replicas < m.Min:
		s.fault(b.Replicas, "is %d: must be at least min (%d)", replicas, m.Min)
	case b.Max != nil && maxOK && replicas > m.Max:
		s.fault(b.Replicas, "is %d: must be at most max (%d)", replicas, m.Max)
	}
	s.number(b.Priority, &m.Priority, 0, MaxPriority)
	if s.number(b.KeepWarm, &m.KeepWarm, 0, MaxReplicas) && maxOK && replicasOK && minOK && m.KeepWarm > m.Max {
		s.fault(b.KeepWarm, "is %d: must be at most max (%d)", m.KeepWarm, m.Max)
	}
	s.Read(s.path, b.Dedicated, &m.Dedicated, "true or false")
	s.Read(s.path, b.Failover, &m.Failover, "true or false")
	s.Read(s.path, b.Continuation, &m.Continuation, "true or false")
	s.Read(s.path, b.PassAuth, &m.PassAuthorization, "true or false")
	s.oneOf(b.Management, (*string)(&m.Management), string(state.ManagementDisabled), string(state.ManagementManual),
		string(state.ManagementUpscaling), string(state.ManagementFull))
	if b.Idle != nil {
		i := s
		i.path += "idle: "
		i.duration(b.Idle.Warm, &m.IdleWarm)
		i.duration(b.Idle.Cold, &m.IdleCold)
		// Both count from the last request.
		if m.IdleWarm > 0 && m.IdleCold > 0 && m.IdleCold <= m.IdleWarm {
			i.fault(b.Idle.Cold, "is %q: must be more than warm (%q)", formatDuration(m.IdleCold), formatDuration(m.IdleWarm))
		}
	}
	if b.Queue != nil {
		q := s
		q.path += "queue: "
		q.number(b.Queue.Length, &m.Queue.Length, 1, MaxQueue)
		parsed(q, b.Queue.Wait, &m.Queue.Wait, wantWait, parseWait)
		parsed(q, b.Queue.FirstByte, &m.Queue.FirstByte, wantWait, parseWait)
	}
	if b.Update != nil {
		s.update(b.Update, &m, maxOK)
	}
	if b.SLO != nil {
		q := s
		q.path += "slo: "
		parsed(q, b.SLO.TTFT, &m.SLO.TTFT, wantGoal, parseGoal)
		parsed(q, b.SLO.ITL, &m.SLO.ITL, wantGoal, parseGoal)
	}
	if b.Scaling != nil {
		m.Scaling = s.scaling(b.Scaling)
	}
	first := map[string]hcl.Range{}
	for i := range b.Variants {
		v := &b.Variants[i]
		if err := replica.CheckVariant(v.Name); err != nil {
			p.Add(v.NameAt, "%svariant: name %v", s.path, err)
		} else if at, dup := first[v.Name]; dup {
			p.Add(v.NameAt, "%sduplicate variant %q: first defined on line %d", s.path, v.Name, at.Start.Line)
		} else {
			first[v.Name] = v.NameAt
		}
		m.Variants = append(m.Variants, p.variant(s.path, v, m.Failover))
	}
	if len(b.Variants) == 0 {
		s.missing("no variant: at least one block is required, such as variant \"h100\" { … }")
	}
	return m
}

// update reads the update block. maxOK: the model's max is known.
func (s scope) update(b *updateBlock, m *state.Model, maxOK bool) {
	u := s
	u.path += "update: "
	var none state.Model
	read := state.Update{Surge: none.Surge()}
	surgeOK := u.number(b.Surge, &read.Surge, 0, MaxReplicas)
	if a, ok := u.amount(b.MinAvailable, MaxReplicas); ok {
		read.MinAvailable = &a
		switch {
		case maxOK && !a.Percent && a.Number > m.Max:
			u.fault(b.MinAvailable, "is %s: must be at most max (%d)", a, m.Max)
		case surgeOK && read.Surge == 0 && maxOK && a.Of(m.Max) >= m.Max:
			u.fault(b.MinAvailable, "is %s and surge is 0: a rollout could replace none of max (%d) replicas: lower it, or set surge to 1", a, m.Max)
		}
	}
	if read != (state.Update{Surge: none.Surge()}) {
		m.Update = &read
	}
}

func (p *parser) variant(model string, b *variantBlock, failover bool) state.Variant {
	v := state.Variant{Name: b.Name, GPUs: 1, Engine: DefaultEngine}
	s := p.scope(fmt.Sprintf("%svariant %q: ", model, hclfault.Clip(v.Name)), b.At, b.Body)
	// A size that was read is more than 0.
	s.size(b.Weights, &v.Weights)
	s.size(b.Memory, &v.Memory)
	s.size(b.HostMemory, &v.HostMemory)
	s.size(b.SleepMemory, &v.SleepMemory)
	s.size(b.SharedMemory, &v.SharedMemory)
	gpusOK := s.gpus(b, &v)
	switch {
	case b.Weights == nil && (b.Memory == nil || b.HostMemory == nil):
		s.missing("weights is missing: set their size, such as \"16GiB\", or both memory and host_memory")
	case v.Memory > 0 && gpusOK && v.Memory*int64(v.GPUs) < v.Weights:
		s.fault(b.Memory, "is %q on each of %d GPUs: together they must hold at least the weights (%q)", bytesize.Format(v.Memory), v.GPUs, bytesize.Format(v.Weights))
	}
	if v.HostMemory > 0 && v.HostMemory < v.Weights {
		s.fault(b.HostMemory, "is %q: must be at least the size of the weights (%q)", bytesize.Format(v.HostMemory), bytesize.Format(v.Weights))
	}
	if v.Weights > 0 && b.Memory == nil {
		v.Memory = placement.PerGPU(replicaSize(v.Weights), v.GPUs)
	}
	if v.Weights > 0 && b.HostMemory == nil {
		v.HostMemory = replicaSize(v.Weights)
	}
	if gpusOK && v.Memory > 0 && v.SleepMemory > v.Memory {
		s.fault(b.SleepMemory, "is %q: must be at most the memory of a serving replica on each GPU (%q)", bytesize.Format(v.SleepMemory), bytesize.Format(v.Memory))
	}
	if gpusOK && v.Memory > 0 && v.SharedMemory > v.Memory {
		s.fault(b.SharedMemory, "is %q: must be at most the memory of a serving replica on each GPU (%q)", bytesize.Format(v.SharedMemory), bytesize.Format(v.Memory))
	}
	v.Cost = float64(v.GPUs)
	if want := fmt.Sprintf("a number from 0 to %g", maxCost); s.Read(s.path, b.Cost, &v.Cost, want) && !(v.Cost >= 0 && v.Cost <= maxCost) {
		s.fault(b.Cost, "is %g: must be %s", v.Cost, want)
	}
	s.number(b.Slots, &v.Slots, 0, MaxSlots)
	// The engine APIs that the shim speaks (remuda engine -dialect).
	s.oneOf(b.Engine, &v.Engine, "vllm", "sglang", "ollama", "sim")
	s.job(b, &v, failover)
	return v
}

// gpus reads the gpu block. It returns false if the number of GPUs is not known.
func (s scope) gpus(vb *variantBlock, v *state.Variant) bool {
	b := vb.GPU
	if b == nil {
		return true
	}
	g := s
	g.path += "gpu: "
	if g.Read(g.path, b.Model, &v.GPUModel, "a string") {
		if err := checkGPUModel(v.GPUModel); err != nil {
			g.fault(b.Model, "%v", err)
		}
	}
	known := g.number(b.Count, &v.GPUs, 1, maxGPUs)
	if known && placement.Degree(v.GPUs) != v.GPUs {
		g.fault(b.Count, "is %d: must be 1, 2, 4, 8 or 16 (the tensor-parallel degree)", v.GPUs)
		known = false
	}
	// How large each is, in place of how many they are.
	var card int64
	switch {
	case b.Memory == nil:
	case !g.size(b.Memory, &card):
		known = false
	case b.Count != nil:
		g.fault(b.Memory, "is %q, but count is also set: set one of them (the number of GPUs follows from their memory)", bytesize.Format(card))
		known = false
	case v.Weights == 0:
		known = false
		// Otherwise the missing weights are reported anyway.
		if vb.Weights == nil && vb.Memory != nil && vb.HostMemory != nil {
			g.fault(b.Memory, "is %q, but weights is missing: set weights, from which the number of GPUs follows, or set count", bytesize.Format(card))
		}
	default:
		n, _ := placement.Sizing(v.Weights, card)
		if n == 0 {
			g.fault(b.Memory, "is %q: weights of %q take %q, which does not fit on %d such GPUs: use larger GPUs", bytesize.Format(card), bytesize.Format(v.Weights), bytesize.Format(replicaSize(v.Weights)), maxGPUs)
			known = false
			break
		}
		v.GPUs = n
		if v.Memory > card {
			s.fault(vb.Memory, "is %q on each GPU: must be at most gpu: memory (%q)", bytesize.Format(v.Memory), bytesize.Format(card))
		}
	}
	reach := 0
	switch {
	case !g.number(b.Reach, &reach, 1, maxGPUs) || b.Reach == nil || !known:
	case reach < v.GPUs:
		g.fault(b.Reach, "is %d: must be at least the number of GPUs of a replica (%d)", reach, v.GPUs)
	case reach > v.GPUs:
		v.Reach = reach
	}
	return known
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

// job reads the variant's job file and vars, and checks them as far as Nomad is not needed.
func (s scope) job(b *variantBlock, v *state.Variant, failover bool) {
	vars := s.vars(b.Vars)
	v.Vars = vars.values
	attr := b.Job
	if attr == nil {
		s.shippedJob(v, failover, vars)
		return
	}
	value, diags := attr.Expr.Value(&hcl.EvalContext{Functions: map[string]function.Function{"file": fileFunction}})
	path, inline := "", false
	switch {
	case diags.HasErrors():
		s.Diagnostics(s.path+"job: ", diags)
		return
	case value.IsNull() || !value.IsWhollyKnown() || value.Type() != cty.String && !value.Type().Equals(fileType):
		s.fault(attr, "is %s: must be the path of a Nomad job file, such as \"vllm.nomad.hcl\"", hclfault.Show(value))
		return
	case value.Type() == cty.String:
		path = value.AsString()
		inline = strings.ContainsRune(path, '\n') // the job itself, in a heredoc
	default:
		path = *value.EncapsulatedValue().(*string)
	}
	source, filename := path, "job"
	if !inline {
		var ok bool
		if source, filename, ok = s.readJob(attr, path); !ok {
			return
		}
	}
	if len(source) > maxJob {
		s.fault(attr, "is %d bytes: must be at most %s", len(source), bytesize.Format(maxJob))
		return
	}
	if !utf8.ValidString(source) {
		s.fault(attr, "is %q: must be UTF-8 text", hclfault.Clip(filename))
		return
	}
	// HCL composes what it reads (NFC), so that equal texts are equal bytes.
	v.Job = cty.StringVal(tidyJob(source)).AsString()
	declared, diags := JobVariables(filename, v.Job)
	if diags.HasErrors() {
		for _, d := range diags {
			if inline && d.Subject != nil {
				d.Detail = fmt.Sprintf("On line %d of the job: %s", d.Subject.Start.Line, d.Detail)
				d.Subject = &attr.Range
			}
		}
		s.Diagnostics(s.path+"job: ", diags)
		return
	}
	s.checkVars(vars, declared)
}

// readJob reads the job file that an attribute names.
func (s scope) readJob(attr *hcl.Attribute, path string) (source, filename string, ok bool) {
	if path == "" {
		s.fault(attr, "is empty: must be the path of a Nomad job file, such as \"vllm.nomad.hcl\"")
		return "", "", false
	}
	filename = path
	if !filepath.IsAbs(path) {
		filename = filepath.Join(s.dir, path)
	}
	if s.read == nil {
		s.fault(attr, "is %q: must be the job itself, in a heredoc: files cannot be read here", hclfault.Clip(path))
		return "", "", false
	}
	raw, err := s.read(filename)
	if err != nil {
		s.fault(attr, "is %q: cannot read the file: %v", hclfault.Clip(path), err)
		return "", "", false
	}
	return string(raw), filename, true
}

// variables are the values that a variant has for the variables of its job file.
type variables struct {
	values map[string]string
	// ranges are of all that have a name, also of those whose value cannot be read.
	ranges map[string]hcl.Range
	// at is of the whole attribute, or of the variant without one.
	at hcl.Range
	// broken: the names could not be read.
	broken bool
}

// vars reads the values of a job file's variables. Numbers and booleans are written
// as strings, as on Nomad's command line; lists and objects as HCL expressions.
func (s scope) vars(attr *hcl.Attribute) variables {
	out := variables{ranges: map[string]hcl.Range{}, at: s.at}
	if attr == nil {
		return out
	}
	out.at = attr.Expr.Range()
	pairs, diags := hcl.ExprMap(attr.Expr)
	if diags.HasErrors() {
		s.fault(attr, "is %s: must be values by variable name, such as { tensor_parallel = 2 }", hclfault.Found(attr.Expr))
		out.broken = true
		return out
	}
	path := s.path + "vars: "
	for _, pair := range pairs {
		var k string
		if !s.ReadExpr(path+"name", pair.Key, &k, "a variable's name, as in { tensor_parallel = 2 }") {
			continue
		}
		if at, dup := out.ranges[k]; dup {
			s.Add(pair.Key.Range(), "%sduplicate %q: first set on line %d", path, hclfault.Clip(k), at.Start.Line)
			continue
		}
		out.ranges[k] = pair.Value.Range()
		v, diags := pair.Value.Value(nil)
		switch text, err := convert.Convert(v, cty.String); {
		case diags.HasErrors():
			s.Diagnostics(path+hclfault.Clip(k)+": ", diags)
			continue
		case v.IsNull() || !v.IsWhollyKnown():
			s.Add(pair.Value.Range(), "%s%s is null: set a value, or leave it out", path, hclfault.Clip(k))
			continue
		case err == nil:
			v = text
		}
		if out.values == nil {
			out.values = map[string]string{}
		}
		if v.Type() == cty.String {
			out.values[k] = v.AsString()
		} else {
			out.values[k] = expression(v)
		}
	}
	return out
}

// checkVars compares the values with the variables that the job file declares.
func (s scope) checkVars(vars variables, declared []JobVariable) {
	if vars.broken {
		return
	}
	path := s.path + "vars: "
	byName := map[string]JobVariable{}
	var names []string
	for _, d := range declared {
		byName[d.Name] = d
		if !reserved(d.Name) {
			names = append(names, d.Name)
		}
	}
	for name, at := range vars.ranges {
		d, known := byName[name]
		switch {
		case reserved(name):
			s.Add(at, "%s%s is set by the controller: leave it out", path, name)
		case !known && len(names) == 0:
			s.Add(at, "%sthe job file has no variable %q; it has none", path, hclfault.Clip(name))
		case !known:
			s.Add(at, "%sthe job file has no variable %q%s", path, hclfault.Clip(name), suggest(name, names))
		case d.Composite && !compositeExpression(vars.values[name]):
			s.Add(at, "%s%s is %q: must be a list or an object, as declared in the job file", path, name, hclfault.Clip(vars.values[name]))
		}
	}
	for _, d := range declared {
		if _, given := vars.values[d.Name]; d.Required && !given && !reserved(d.Name) {
			s.Add(vars.at, "%s%q is missing: the variable has no default in the job file", path, d.Name)
		}
	}
}

func reserved(name string) bool { return slices.Contains(ReservedVars(), name) }

// compositeExpression tells whether a text is a list or an object in HCL.
func compositeExpression(text string) bool {
	expr, diags := hclfault.ParseExpression([]byte(text), "")
	if diags.HasErrors() {
		return false
	}
	v, diags := expr.Value(nil)
	return !diags.HasErrors() && (v.Type().IsTupleType() || v.Type().IsObjectType())
}
