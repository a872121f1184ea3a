package scalesim

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// Clients are measured clients of a service: for each, how fast and how regularly its
// requests came in windows of equal length. The format is that of ServeGen (Xiang et al.,
// arXiv 2505.09999). Clients are a recipe: Generate makes a trace of them.
type Clients struct {
	Name string `json:"name"`
	// Window is the length of a window.
	Window time.Duration `json:"window_ns"`
	// Clients are in the order of their names.
	Clients []Client `json:"clients"`
}

// Client is one client, with one entry for each window.
type Client struct {
	Name    string   `json:"name"`
	Windows []Window `json:"windows"`
}

// Window says how requests arrived: Rate a second, with the times between them distributed
// as Kind with Shape. The scale of the distribution is not kept: the rate gives it.
type Window struct {
	Rate  float64 `json:"rate"`
	Kind  Kind    `json:"kind,omitempty"`
	Shape float64 `json:"shape,omitempty"`
}

// Kind is a distribution of the times between requests.
type Kind string

// The kinds that ServeGen has; Exponential stands for both where the shape is 1.
const (
	Exponential Kind = ""
	Gamma       Kind = "Gamma"
	Weibull     Kind = "Weibull"
)

const (
	maxClients       = 10_000
	maxClientWindows = 100_000
	maxArchive       = 1 << 30 // bytes, unpacked
	maxRate          = 1e6     // requests a second of one client
)

// ReadServeGen reads a tar.gz with one CSV file a client, as
// servegen-m-small-traces.tar.gz: each line has the window's first second, the rate (1/s),
// the coefficient of variation, the distribution, and its two parameters (shape and scale).
// The first bad field is named with its file and line. A line with rate 0 needs no
// distribution.
func ReadServeGen(name string, r io.Reader) (*Clients, error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: not a gzip file: %w", name, err)
	}
	files := tar.NewReader(io.LimitReader(gz, maxArchive))
	out := &Clients{Name: name}
	for {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if file.Typeflag != tar.TypeReg || path.Ext(file.Name) != ".csv" {
			continue
		}
		if len(out.Clients) == maxClients {
			return nil, fmt.Errorf("read %s: it has more than %d clients", name, maxClients)
		}
		client, window, err := readClient(file.Name, files)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if out.Window != 0 && window != out.Window {
			return nil, fmt.Errorf("read %s: %s has windows of %v, others of %v: they must be equal", name, file.Name, window, out.Window)
		}
		out.Window = window
		out.Clients = append(out.Clients, client)
	}
	if len(out.Clients) == 0 {
		return nil, fmt.Errorf("read %s: it has no CSV file", name)
	}
	slices.SortFunc(out.Clients, func(a, b Client) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(out.Clients); i++ {
		if out.Clients[i].Name == out.Clients[i-1].Name {
			return nil, fmt.Errorf("read %s: %s is in it twice", name, out.Clients[i].Name)
		}
	}
	return out, nil
}

// readClient reads the windows of one client and their length, 600 s if there is only one.
func readClient(name string, r io.Reader) (Client, time.Duration, error) {
	client := Client{Name: name}
	window := 600.0
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		fail := func(format string, args ...any) (Client, time.Duration, error) {
			return Client{}, 0, fmt.Errorf("%s: line %d: %s", name, n, fmt.Sprintf(format, args...))
		}
		fields := strings.Split(text, ",")
		if len(fields) != 6 {
			return fail("it has %d fields: they must be 6 (start, rate, cv, distribution, shape, scale)", len(fields))
		}
		k := len(client.Windows)
		if k == maxClientWindows {
			return fail("it has more than %d windows", maxClientWindows)
		}
		start, err := strconv.ParseFloat(fields[0], 64)
		if k == 1 {
			window = start
		}
		if err != nil || math.Abs(start-float64(k)*window) > 1e-6 || !(window >= 1 && window <= 1e6) {
			return fail("start is %q: window %d must start at %v s, as windows have one length of 1 to 1e6 s", fields[0], k, float64(k)*window)
		}
		w := Window{Kind: Kind(fields[3])}
		if w.Rate, err = strconv.ParseFloat(fields[1], 64); err != nil || !(w.Rate >= 0 && w.Rate <= maxRate) {
			return fail("rate is %q: it must be 0 to %v requests/s", fields[1], maxRate)
		}
		switch {
		case w.Rate == 0:
			w = Window{}
		case w.Kind == Gamma || w.Kind == Weibull:
			if w.Shape, err = strconv.ParseFloat(fields[4], 64); err != nil || !(w.Shape >= minShape && w.Shape <= maxShape) {
				return fail("shape is %q: it must be %v to %v", fields[4], minShape, maxShape)
			}
		case w.Kind != Exponential:
			return fail("distribution is %q: it must be Gamma, Weibull or empty", fields[3])
		}
		client.Windows = append(client.Windows, w)
	}
	if err := lines.Err(); err != nil {
		return Client{}, 0, fmt.Errorf("%s: %w", name, err)
	}
	if len(client.Windows) == 0 {
		return Client{}, 0, fmt.Errorf("%s: it has no windows", name)
	}
	return client, time.Duration(math.Round(window * float64(time.Second))), nil
}

// Shapes beyond these say nothing that a float could draw.
const (
	minShape = 1e-3
	maxShape = 1e6
)

// Span is how long the clients were measured.
func (c *Clients) Span() time.Duration {
	n := 0
	for i := range c.Clients {
		n = max(n, len(c.Clients[i].Windows))
	}
	return time.Duration(n) * c.Window
}

// Requests is how many requests were measured.
func (c *Clients) Requests() float64 {
	sum := 0.0
	for _, client := range c.Clients {
		for _, w := range client.Windows {
			sum += w.Rate * c.Window.Seconds()
		}
	}
	return sum
}

// Generate makes a trace from the windows that begin at from or later and end at to or
// earlier (0 means the end).
//
// Each window of each client has scale times the requests that were measured in it, exactly
// (fractions are carried into its next window). The times between them are drawn from the
// window's distribution and fitted to its length, so that a seed changes where in ten
// minutes the bursts are, and never how many requests came. A scale below 1 is a smaller
// service with the same bursts. Lengths and speed give the service times.
func (c *Clients) Generate(seed uint64, scale float64, from, to time.Duration, lengths Lengths, speed Speed) (*Trace, error) {
	if c.Window <= 0 {
		return nil, fmt.Errorf("generate from %q: its window is %v: read it with ReadServeGen", c.Name, c.Window)
	}
	if to <= 0 || to > c.Span() {
		to = c.Span()
	}
	first, last := int((max(from, 0)+c.Window-1)/c.Window), int(to/c.Window)
	if first >= last {
		return nil, fmt.Errorf("generate from %q: no window lies from %v to %v: it has %v in windows of %v", c.Name, from, to, c.Span(), c.Window)
	}
	if !(scale > 0) || c.Requests()*scale > 4*maxArrivals {
		return nil, fmt.Errorf("generate from %q with scale %v: it must be above 0, and %.0f requests times it below %d", c.Name, scale, c.Requests(), maxArrivals)
	}
	t := &Trace{Name: c.Name, Span: time.Duration(last-first) * c.Window}
	draw := rand.New(rand.NewPCG(seed, streamLengths))
	sources := make([]*rand.Rand, len(c.Clients))
	carry := make([]float64, len(c.Clients))
	for i := range sources {
		sources[i] = rand.New(rand.NewPCG(seed, streamClients+uint64(i)))
	}
	var times []int64
	var gaps []float64
	for k := first; k < last; k++ {
		times = times[:0]
		base := int64(k-first) * int64(c.Window)
		for i := range c.Clients {
			if k >= len(c.Clients[i].Windows) {
				continue
			}
			w := c.Clients[i].Windows[k]
			carry[i] += w.Rate * c.Window.Seconds() * scale
			n := int(carry[i] + 1e-6) // rates are quotients of whole counts
			carry[i] = math.Max(carry[i]-float64(n), 0)
			times, gaps = w.fill(times, gaps, n, base, int64(c.Window), sources[i])
		}
		if len(t.Arrivals)+len(times) > maxArrivals {
			return nil, fmt.Errorf("generate from %q with scale %v: more than %d requests: use a lower scale", c.Name, scale, maxArrivals)
		}
		slices.Sort(times)
		for _, at := range times {
			ctx, gen := lengths.Draw(draw)
			t.Arrivals = append(t.Arrivals, Arrival{At: time.Duration(at), Service: speed.Service(ctx, gen), Context: ctx, Generated: gen})
		}
	}
	return t, nil
}

// fill appends n times in [base, base+length): n+1 gaps, fitted to the length.
func (w Window) fill(times []int64, gaps []float64, n int, base, length int64, rng *rand.Rand) ([]int64, []float64) {
	if n == 0 {
		return times, gaps
	}
	gaps = gaps[:0]
	sum := 0.0
	for range n + 1 {
		g := w.gap(rng)
		sum += g
		gaps = append(gaps, sum)
	}
	for _, g := range gaps[:n] {
		at := rng.Float64() // all gaps underflowed: one burst has no shape to keep
		if sum > 0 && !math.IsInf(sum, 1) {
			at = g / sum
		}
		times = append(times, base+min(int64(at*float64(length)), length-1))
	}
	return times, gaps
}

// gap draws the time between two requests, up to a factor.
func (w Window) gap(rng *rand.Rand) float64 {
	switch {
	case w.Kind == Gamma && w.Shape != 1:
		return distuv.Gamma{Alpha: w.Shape, Beta: 1, Src: rng}.Rand()
	case w.Kind == Weibull && w.Shape != 1:
		return math.Pow(rng.ExpFloat64(), 1/w.Shape)
	}
	return rng.ExpFloat64()
}
