package frontier

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Chart is a picture of points: GPU-hours to the right, the share in time upwards, on a
// scale where each line is one nine more.
type Chart struct {
	Title string `json:"title"`
	// Points are drawn by policy: a line along the frontier of each, all of its points, and
	// their intervals as crosses. Policies keep their order of names.
	Points []Point `json:"points"`
	// Goal is a share that a line marks; 0 draws none.
	Goal float64 `json:"goal,omitempty"`
	// Width and Height are in pixels; 0 means 900 and 560.
	Width  int `json:"width,omitempty"`
	Height int `json:"height,omitempty"`
}

// colours are told apart by eyes with any colour vision (Okabe and Ito), and by the
// shapes of the marks.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}

const (
	marginLeft, marginTop, marginBottom = 70, 40, 55
	legendWidth                         = 190
)

// SVG draws the chart as one self-contained document. The same chart gives the same bytes,
// whatever the order of its points.
func (c *Chart) SVG() (string, error) {
	width, height := cmp.Or(c.Width, 900), cmp.Or(c.Height, 560)
	var errs []error
	if width < 400 || width > 10000 || height < 200 || height > 10000 {
		errs = append(errs, fmt.Errorf("the picture is %dx%d: it must be 400 to 10000 wide and 200 to 10000 high", width, height))
	}
	if len(c.Points) == 0 {
		errs = append(errs, errors.New("the picture has no points"))
	}
	for i, p := range c.Points {
		for _, v := range []float64{p.GPUHours.Mean, p.GPUHours.Low, p.GPUHours.High, p.InTime.Mean, p.InTime.Low, p.InTime.High} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				errs = append(errs, fmt.Errorf("points[%d] (%s %s) has a value %v: it must be finite", i, p.Policy, p.Setting, v))
				break
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("draw %q: %w", c.Title, err)
	}
	d := &drawing{width: float64(width), height: float64(height)}
	d.scale(c.Points, c.Goal)
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&d.b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	d.text(d.left(), 22, "start", 15, c.Title)
	d.axes()
	if c.Goal > 0 && c.Goal < 1 {
		y := d.y(c.Goal)
		fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="#333333" stroke-dasharray="6 4"/>`+"\n", num(d.left()), num(y), num(d.right()), num(y))
	}
	for i, name := range policies(c.Points) {
		d.series(i, name, slices.DeleteFunc(slices.Clone(c.Points), func(p Point) bool { return p.Policy != name }))
	}
	d.b.WriteString("</svg>\n")
	return d.b.String(), nil
}

func policies(points []Point) []string {
	var names []string
	for _, p := range points {
		names = append(names, p.Policy)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// drawing is a picture in the making.
type drawing struct {
	b                   strings.Builder
	width, height       float64
	lowHours, hours     float64 // of the axis
	step                float64
	lowNines, highNines float64
}

func (d *drawing) left() float64   { return marginLeft }
func (d *drawing) right() float64  { return d.width - legendWidth }
func (d *drawing) top() float64    { return marginTop }
func (d *drawing) bottom() float64 { return d.height - marginBottom }

func (d *drawing) x(hours float64) float64 {
	x := d.left() + (hours-d.lowHours)/(d.hours-d.lowHours)*(d.right()-d.left())
	return math.Min(math.Max(x, d.left()), d.right())
}

func (d *drawing) y(share float64) float64 {
	n := math.Min(math.Max(nines(share), d.lowNines), d.highNines)
	return d.bottom() - (n-d.lowNines)/(d.highNines-d.lowNines)*(d.bottom()-d.top())
}

// scale finds the ends of the axes.
func (d *drawing) scale(points []Point, goal float64) {
	low, high := math.Inf(1), math.Inf(-1)
	least, most := math.Inf(1), math.Inf(-1)
	if goal > 0 && goal < 1 {
		least, most = nines(goal), nines(goal)
	}
	for _, p := range points {
		low, high = math.Min(low, p.GPUHours.Mean), math.Max(high, p.GPUHours.Mean)
		least, most = math.Min(least, nines(p.InTime.Mean)), math.Max(most, nines(p.InTime.Mean))
	}
	if high-low < 1e-9*math.Max(math.Abs(high), 1) {
		low, high = low-1, high+1
	}
	raw := (high - low) / 6
	d.step = math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*d.step >= raw {
			d.step *= m
			break
		}
	}
	d.lowHours, d.hours = math.Floor(low/d.step)*d.step, math.Ceil(high/d.step)*d.step
	d.lowNines, d.highNines = math.Floor(least), math.Ceil(most)
	if d.lowNines == d.highNines {
		d.highNines++
	}
}

// axes draws the frame, its lines and its words.
func (d *drawing) axes() {
	fmt.Fprintf(&d.b, `<rect x="%s" y="%s" width="%s" height="%s" fill="none" stroke="#333333"/>`+"\n",
		num(d.left()), num(d.top()), num(d.right()-d.left()), num(d.bottom()-d.top()))
	for i := 0; ; i++ {
		v := d.lowHours + float64(i)*d.step
		if v > d.hours+d.step/2 {
			break
		}
		x := d.x(v)
		fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="#dddddd"/>`+"\n", num(x), num(d.top()), num(x), num(d.bottom()))
		d.text(x, d.bottom()+18, "middle", 12, strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64))
	}
	for n := d.lowNines; n <= d.highNines; n++ {
		y := d.bottom() - (n-d.lowNines)/(d.highNines-d.lowNines)*(d.bottom()-d.top())
		fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="#dddddd"/>`+"\n", num(d.left()), num(y), num(d.right()), num(y))
		d.text(d.left()-6, y+4, "end", 12, percent(int(n)))
	}
	d.text((d.left()+d.right())/2, d.height-14, "middle", 13, "GPU-hours")
	y := (d.top() + d.bottom()) / 2
	fmt.Fprintf(&d.b, `<text x="16" y="%s" text-anchor="middle" font-size="13" transform="rotate(-90 16 %s)">requests started in time</text>`+"\n", num(y), num(y))
}

// percent writes a share of so many nines.
func percent(n int) string {
	switch n {
	case 0:
		return "0 %"
	case 1:
		return "90 %"
	case 2:
		return "99 %"
	case mostNines:
		return "100 %"
	}
	return "99." + strings.Repeat("9", n-2) + " %"
}

// series draws the points of one policy and its line in the legend.
func (d *drawing) series(i int, name string, points []Point) {
	colour := colours[i%len(colours)]
	slices.SortFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.GPUHours.Mean, b.GPUHours.Mean), cmp.Compare(a.InTime.Mean, b.InTime.Mean), cmp.Compare(a.Setting, b.Setting))
	})
	if front := Pareto(points); len(front) > 1 {
		var path []string
		for _, p := range front {
			path = append(path, num(d.x(p.GPUHours.Mean))+","+num(d.y(p.InTime.Mean)))
		}
		fmt.Fprintf(&d.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(path, " "), colour)
	}
	for _, p := range points {
		x, y := d.x(p.GPUHours.Mean), d.y(p.InTime.Mean)
		d.line(d.x(p.GPUHours.Low), y, d.x(p.GPUHours.High), y, colour)
		d.line(x, d.y(p.InTime.Low), x, d.y(p.InTime.High), colour)
		d.mark(i, x, y, colour, fmt.Sprintf("%s %s: %.1f GPU-h, %.4f %%", p.Policy, p.Setting, p.GPUHours.Mean, 100*p.InTime.Mean))
	}
	y := d.top() + 10 + float64(i)*20
	d.mark(i, d.right()+18, y, colour, name)
	d.text(d.right()+30, y+4, "start", 12, name)
}

func (d *drawing) line(x1, y1, x2, y2 float64, colour string) {
	if x1 == x2 && y1 == y2 {
		return
	}
	fmt.Fprintf(&d.b, `<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-opacity="0.5"/>`+"\n", num(x1), num(y1), num(x2), num(y2), colour)
}

// mark draws one of four shapes.
func (d *drawing) mark(i int, x, y float64, colour, title string) {
	const r = 4
	var shape string
	switch (i/2 + i/len(colours)) % 4 { // with the colour: 32 different marks
	case 0:
		shape = fmt.Sprintf(`<circle cx="%s" cy="%s" r="%d"`, num(x), num(y), r)
	case 1:
		shape = fmt.Sprintf(`<rect x="%s" y="%s" width="%d" height="%d"`, num(x-r), num(y-r), 2*r, 2*r)
	case 2:
		shape = fmt.Sprintf(`<path d="M%s %sl%d %dh%dz"`, num(x), num(y-r), r, 2*r, -2*r)
	default:
		shape = fmt.Sprintf(`<path d="M%s %sl%d %dl%d %dl%d %dz"`, num(x), num(y-r-1), r+1, r+1, -r-1, r+1, -r-1, -r-1)
	}
	fmt.Fprintf(&d.b, `%s fill="%s"><title>%s</title>%s`+"\n", shape, colour, escape(title), closing(shape))
}

func closing(shape string) string {
	return "</" + strings.TrimPrefix(strings.Fields(shape)[0], "<") + ">"
}

func (d *drawing) text(x, y float64, anchor string, size int, s string) {
	fmt.Fprintf(&d.b, `<text x="%s" y="%s" text-anchor="%s" font-size="%d">%s</text>`+"\n", num(x), num(y), anchor, size, escape(s))
}

// escape makes a string fit for XML: what it does not allow is left out.
func escape(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0xfffd || r == 0xfffe || r == 0xffff {
			return -1
		}
		return r
	}, s))
}

// num writes a coordinate with at most two decimals.
func num(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
