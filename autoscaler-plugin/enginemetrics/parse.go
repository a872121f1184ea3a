package enginemetrics

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Limits of a page. A page of vLLM has about 400 lines and 40 KB for one rank.
const (
	// MaxBytes is how large a page or an answer may be. Readers of a
	// network should stop one byte after it.
	MaxBytes = 4 << 20
	// MaxSeries is how many series of interest a page or an answer may have; 64 ranks
	// of vLLM have about 1,500.
	MaxSeries = 8192
)

// Errors of a page or an answer that is not read at all.
var (
	// ErrTooLarge: more bytes than MaxBytes.
	ErrTooLarge = errors.New("too large")
	// ErrTooManySeries: more series than MaxSeries.
	ErrTooManySeries = errors.New("too many series")
	// ErrTruncated: the last line of a page does not end. Its value may be cut.
	ErrTruncated = errors.New("truncated")
)

// Options say what to look for on a page. The zero Options find the dialect and
// accept any model.
type Options struct {
	// Dialect is what the engine speaks; nil finds it by the names on the page.
	Dialect *Dialect
	// Models are the names under which the engine may show the model, for example
	// its served name and its path. Empty accepts any.
	Models []string
}

// Parser reads pages. It keeps its buffers between pages and is not safe for
// concurrent use.
type Parser struct {
	opts     Options
	dialects []*Dialect
	told     int // index of Options.Dialect in dialects, -1 for none
	index    map[string][]use

	text  expfmt.TextParser
	lines []line
	kept  bytes.Buffer
	list  []series
}

// use is what a metric name means in a dialect.
type use struct {
	dialect  int
	quantity Quantity
}

// line is a line of a page that may matter.
type line struct {
	text []byte
	uses []use
}

// NewParser makes a parser.
func NewParser(opts Options) *Parser {
	p := &Parser{opts: opts, dialects: Dialects(), told: -1, index: map[string][]use{},
		text: expfmt.NewTextParser(model.UTF8Validation)}
	p.opts.Models = slices.Clone(opts.Models)
	if opts.Dialect != nil {
		p.told = slices.IndexFunc(p.dialects, func(d *Dialect) bool { return d.Name == opts.Dialect.Name })
		if p.told < 0 {
			p.dialects = append(p.dialects, nil)
			p.told = len(p.dialects) - 1
		}
		p.dialects[p.told] = opts.Dialect
	}
	for i, d := range p.dialects {
		for q := range quantities {
			for _, n := range d.Metrics[q] {
				p.index[n] = append(p.index[n], use{i, q})
			}
		}
	}
	return p
}

// Parse reads a page in Prometheus' text format, with Prometheus' own parser.
//
// Only the lines that it needs go through the parser; a page of vLLM is nine
// tenths histogram buckets. A malformed line makes its own quantity bad and
// spoils nothing else. An error means that the page is not to be believed at
// all: it is too large or it is cut off. A page that has nothing of the engine
// is no error but a Finding.
func (p *Parser) Parse(page []byte) (Sample, error) {
	if len(page) > MaxBytes {
		return Sample{}, fmt.Errorf("metrics page: %w: %d bytes: must be at most %d", ErrTooLarge, len(page), MaxBytes)
	}
	if len(page) > 0 && page[len(page)-1] != '\n' {
		return Sample{}, fmt.Errorf("metrics page: %w: the last line of %d bytes does not end with a newline", ErrTruncated, len(page))
	}
	if p.told >= 0 && len(p.dialects[p.told].Metrics) == 0 {
		d := p.dialects[p.told]
		return Sample{Dialect: d.Name, Findings: []Finding{finding(NoMetrics, []string{d.Name}, nil)}}, nil
	}
	defer func() { // keep no page alive
		clear(p.lines)
		p.lines = p.lines[:0]
	}()
	if err := p.scan(page); err != nil {
		return Sample{}, err
	}
	chosen, found := p.choose()
	if chosen < 0 {
		return Sample{Findings: []Finding{found}}, nil
	}
	s := p.read(chosen)
	if found.Kind != "" {
		s.Findings = append(s.Findings, found)
	}
	s.Findings = mergeFindings(s.Findings)
	return s, nil
}

// reading is one page under one dialect.
type reading struct {
	d        *Dialect
	families map[string]*dto.MetricFamily
	// unreadable are the names that have a malformed line.
	unreadable map[string]bool
	// models are the model names of core series, and whether they were accepted.
	models map[string]bool
}

// read makes a sample of the lines of one dialect.
func (p *Parser) read(chosen int) Sample {
	r := reading{d: p.dialects[chosen], models: map[string]bool{}}
	r.families, r.unreadable = p.families(chosen)
	s := Sample{Dialect: r.d.Name}

	var cores [len(core)]joined
	pointers := make([]*joined, 0, len(core))
	anyCore := false
	for i, q := range core {
		cores[i] = p.quantity(&r, q)
		anyCore = anyCore || !cores[i].value.IsZero()
		if q == Waiting && cores[i].value.present() {
			cores[i].value = plus(cores[i].value, p.quantity(&r, Swapped).value)
		}
		pointers = append(pointers, &cores[i])
	}
	s.Ranks = completeRanks(pointers)
	for i, q := range core {
		if anyCore && cores[i].value.IsZero() && r.d.requires(q) {
			cores[i].value = Flawed(NotShown)
		}
	}
	s.Running, s.Waiting, s.KVUsage = cores[0].value, cores[1].value, cores[2].value

	s.Blocks = p.quantity(&r, Blocks).value
	s.BlockSize = p.quantity(&r, BlockSize).value
	s.KVTokens = p.quantity(&r, KVTokens).value
	p.cacheInfo(&r, &s)
	if s.KVTokens.IsZero() && s.Blocks.present() && s.BlockSize.present() {
		s.KVTokens = check(s.Blocks.number()*s.BlockSize.number(), maxCounter)
	}
	s.Asleep = p.asleep(&r)
	for i := range counters {
		*s.Counters.at(i) = p.quantity(&r, Finished+Quantity(i)).value
	}
	for i := range latencies {
		*s.Counters.latency(i) = p.latency(&r, FirstTokens+Quantity(i))
	}
	s.Findings = p.modelFindings(&r, cores[:])
	return s
}

// plus adds an optional part to a present count.
func plus(a, b Value) Value {
	switch {
	case b.present():
		return check(a.number()+b.number(), maxGauge)
	case b.flawed():
		return b
	}
	return a
}

// modelFindings compares the model names of the page with those wanted.
func (p *Parser) modelFindings(r *reading, cores []joined) []Finding {
	var seen []string
	for name, accepted := range r.models {
		if !accepted || len(p.opts.Models) == 0 {
			seen = append(seen, name)
		}
	}
	switch {
	case slices.ContainsFunc(cores, func(j joined) bool { return j.value == Flawed(Mismatch) }):
		return []Finding{finding(LabelMismatch, p.opts.Models, seen)}
	case len(p.opts.Models) == 0 && len(seen) > 1:
		return []Finding{finding(SeveralModels, nil, seen)}
	}
	return nil
}

// families runs Prometheus' parser over the lines of one dialect. No TYPE line
// is among them, so every series is untyped and a histogram's _sum and _count
// are series of their own.
func (p *Parser) families(chosen int) (map[string]*dto.MetricFamily, map[string]bool) {
	p.kept.Reset()
	for _, l := range p.lines {
		if slices.ContainsFunc(l.uses, func(u use) bool { return u.dialect == chosen }) {
			p.kept.Write(l.text)
			p.kept.WriteByte('\n')
		}
	}
	if families, err := p.parseText(p.kept.Bytes()); err == nil {
		return families, nil
	}
	// The parser stops at the first malformed line. Go line by line, so that one
	// such line does not hide the others.
	families, unreadable := map[string]*dto.MetricFamily{}, map[string]bool{}
	for text := range bytes.Lines(p.kept.Bytes()) {
		one, err := p.parseText(text)
		if err != nil {
			unreadable[string(metricName(text))] = true
			continue
		}
		for name, f := range one {
			if into, ok := families[name]; ok {
				into.Metric = append(into.Metric, f.Metric...)
			} else {
				families[name] = f
			}
		}
	}
	return families, unreadable
}

// parseText is the text parser without its panics (expfmt 0.67.5 has one on
// braces without a name). Its state is set anew by every call.
func (p *Parser) parseText(text []byte) (families map[string]*dto.MetricFamily, err error) {
	defer func() {
		if r := recover(); r != nil {
			p.text = expfmt.NewTextParser(model.UTF8Validation)
			families, err = nil, fmt.Errorf("text parser: %v", r)
		}
	}()
	return p.text.TextToMetricFamilies(bytes.NewReader(text))
}

// quantity joins the series of the first of a quantity's names that has any.
func (p *Parser) quantity(r *reading, q Quantity) joined {
	mismatch := false
	for _, name := range r.d.Metrics[q] {
		if r.unreadable[name] {
			return joined{value: Flawed(Unreadable)}
		}
		p.list = p.list[:0]
		for _, m := range r.families[name].GetMetric() {
			s, modelName := r.d.classify(pairs(m), false)
			accepted := p.accepts(modelName)
			if isCore(q) && modelName != "" {
				r.models[modelName] = accepted
			}
			if !accepted {
				mismatch = true
				continue
			}
			s.value = m.GetUntyped().GetValue()
			p.list = append(p.list, s)
		}
		if len(p.list) > 0 {
			return join(q, p.list, r.d.KVPercent, false)
		}
	}
	if mismatch {
		return joined{value: Flawed(Mismatch)}
	}
	return joined{}
}

// accepts tells whether a series of this model counts. One without a model
// belongs to the engine whose page it is.
func (p *Parser) accepts(modelName string) bool {
	return modelName == "" || len(p.opts.Models) == 0 || slices.Contains(p.opts.Models, modelName)
}

func pairs(m *dto.Metric) labels {
	return func(yield func(name, value string) bool) {
		for _, l := range m.GetLabel() {
			if !yield(l.GetName(), l.GetValue()) {
				return
			}
		}
	}
}

// cacheInfo reads vLLM's KV cache from the labels of an info series. Before
// profiling vLLM writes None there, which is as good as nothing.
func (p *Parser) cacheInfo(r *reading, s *Sample) {
	for _, name := range r.d.Metrics[CacheInfo] {
		var ranks map[string][2]float64 // blocks and block size; the larger of two
		for _, m := range r.families[name].GetMetric() {
			key, modelName := r.d.classify(pairs(m), false)
			b, errB := strconv.Atoi(labelOf(m, "num_gpu_blocks"))
			z, errZ := strconv.Atoi(labelOf(m, "block_size"))
			if errB != nil || errZ != nil || b <= 0 || z <= 0 || b > maxGauge || z > maxGauge || !p.accepts(modelName) {
				continue
			}
			if ranks == nil {
				ranks = map[string][2]float64{}
			}
			had := ranks[key.rank]
			ranks[key.rank] = [2]float64{max(had[0], float64(b)), max(had[1], float64(z))}
		}
		// Integers below 2^53 add up the same in any order.
		blocks, size, tokens := 0.0, 0.0, 0.0
		for _, r := range ranks {
			blocks += r[0]
			tokens += r[0] * r[1]
			size = max(size, r[1])
		}
		if blocks > 0 {
			s.Blocks, s.BlockSize, s.KVTokens = check(blocks, maxGauge), check(size, maxGauge), check(tokens, maxCounter)
			return
		}
	}
}

// asleep looks for an engine that says it is not awake.
func (p *Parser) asleep(r *reading) bool {
	for _, name := range r.d.Metrics[SleepState] {
		for _, m := range r.families[name].GetMetric() {
			_, modelName := r.d.classify(pairs(m), false)
			if labelOf(m, "sleep_state") == "awake" && m.GetUntyped().GetValue() == 0 && p.accepts(modelName) {
				return true
			}
		}
	}
	return false
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
