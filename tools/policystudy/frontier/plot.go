package frontier

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is a picture of points: GPU-hours to the right, the share in time upwards, on a
// scale where each line is one nine more.
type Chart struct {
	Title string
	// Points are drawn by policy: a line along the frontier of each, all of its points, and
	// their intervals as crosses. Policies are in the order of their names.
	Points []Point
	// Goal is a share that a line marks; 0 draws none.
	Goal float64
}

// SVG draws the chart. The same chart gives the same bytes, whatever the order of its points.
func (c *Chart) SVG() ([]byte, error) {
	p, err := c.plot()
	if err != nil {
		return nil, fmt.Errorf("draw %q: %w", c.Title, err)
	}
	canvas := vgsvg.New(10*vg.Inch, 6*vg.Inch)
	p.Draw(draw.New(canvas))
	var svg bytes.Buffer
	_, err = canvas.WriteTo(&svg)
	return svg.Bytes(), err
}

func (c *Chart) plot() (*plot.Plot, error) {
	if len(c.Points) == 0 {
		return nil, errors.New("the picture has no points")
	}
	points := slices.Clone(c.Points)
	slices.SortFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.GPUHours.Mean, b.GPUHours.Mean),
			cmp.Compare(a.InTime.Mean, b.InTime.Mean), cmp.Compare(a.Setting, b.Setting))
	})
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, "GPU-hours", "requests started in time"
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i := 0; len(points) > 0; i++ {
		n := slices.IndexFunc(points, func(x Point) bool { return x.Policy != points[0].Policy })
		if n < 0 {
			n = len(points)
		}
		if err := series(p, i, points[:n]); err != nil {
			return nil, err
		}
		points = points[n:]
	}
	if c.Goal > 0 && c.Goal < 1 {
		goal, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: nines(c.Goal)}, {X: p.X.Max, Y: nines(c.Goal)}})
		if err != nil {
			return nil, err
		}
		goal.Dashes = plotutil.Dashes(1)
		p.Add(goal)
	}
	p.Y.Min, p.Y.Max = math.Floor(p.Y.Min), math.Ceil(p.Y.Max)
	if p.Y.Min == p.Y.Max {
		p.Y.Max++
	}
	var ticks plot.ConstantTicks
	for n := p.Y.Min; n <= p.Y.Max; n++ {
		ticks = append(ticks, plot.Tick{Value: n, Label: percent(int(n))})
	}
	p.Y.Tick.Marker = ticks
	return p, nil
}

// marks are the points of one series, with their intervals.
type marks []Point

// Len implements plotter.XYer.
func (m marks) Len() int { return len(m) }

// XY implements plotter.XYer.
func (m marks) XY(i int) (x, y float64) { return m[i].GPUHours.Mean, nines(m[i].InTime.Mean) }

// XError implements plotter.XErrorer.
func (m marks) XError(i int) (low, high float64) {
	h := m[i].GPUHours
	return h.Low - h.Mean, h.High - h.Mean
}

// YError implements plotter.YErrorer.
func (m marks) YError(i int) (low, high float64) {
	s := m[i].InTime
	return nines(s.Low) - nines(s.Mean), nines(s.High) - nines(s.Mean)
}

// series draws the points of one policy, of which the sorted ones are the i-th.
func series(p *plot.Plot, i int, points []Point) error {
	for j, x := range points {
		for _, v := range []float64{x.GPUHours.Mean, x.GPUHours.Low, x.GPUHours.High, x.InTime.Mean, x.InTime.Low, x.InTime.High} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("point %d of %s (%s) has a value %v: it must be finite", j, x.Policy, x.Setting, v)
			}
		}
	}
	line, err := plotter.NewLine(marks(Pareto(points)))
	if err != nil {
		return err
	}
	scatter, err := plotter.NewScatter(marks(points))
	if err != nil {
		return err
	}
	across, err := plotter.NewXErrorBars(marks(points))
	if err != nil {
		return err
	}
	up, err := plotter.NewYErrorBars(marks(points))
	if err != nil {
		return err
	}
	colour, shape := look(i)
	line.Color, scatter.Color, across.Color, up.Color = colour, colour, colour, colour
	scatter.Shape = shape
	p.Add(line, scatter, across, up)
	p.Legend.Add(points[0].Policy, line, scatter)
	return nil
}

// look is the colour and shape of the i-th series. There are 7 colours and 8 shapes, so that
// 56 series differ.
func look(i int) (color.Color, draw.GlyphDrawer) {
	return plotutil.DarkColors[i%len(plotutil.DarkColors)], plotutil.Shape(i)
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
