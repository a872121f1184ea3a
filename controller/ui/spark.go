package ui

import (
	"html/template"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
)

// Size of a sparkline in its own units: one for each step of an hour, and a height.
const (
	sparkWidth  = api.HistorySteps - 1
	sparkHeight = 16
)

// spark is a line of the last hour as SVG, the newest number at the right edge. A line of zeros is flat.
// name says what the numbers are. Nothing that users write is in it.
func spark[N int | int64](name string, numbers []N) template.HTML {
	if len(numbers) < 2 {
		return ""
	}
	top := N(1)
	for _, n := range numbers {
		top = max(top, n)
	}
	var points strings.Builder
	for i, n := range numbers {
		if i > 0 {
			points.WriteByte(' ')
		}
		points.WriteString(strconv.Itoa(sparkWidth - len(numbers) + 1 + i))
		points.WriteByte(',')
		points.WriteString(strconv.FormatFloat(sparkHeight-0.5-float64(n)/float64(top)*(sparkHeight-1), 'f', 1, 64))
	}
	label := name + " in the last " + strconv.Itoa(len(numbers)) + " minutes: now " + count(numbers[len(numbers)-1]) + ", at most " + count(top)
	return template.HTML(`<svg class="spark" role="img" aria-label="` + template.HTMLEscapeString(label) + `" viewBox="0 0 ` + strconv.Itoa(sparkWidth) + " " + strconv.Itoa(sparkHeight) +
		`" preserveAspectRatio="none"><polyline points="` + points.String() + `"/></svg>`) // escaped above
}

// perSecond is the last number of a series of minutes, as a rate.
func perSecond(numbers []int64) string {
	if len(numbers) == 0 {
		return ""
	}
	n := numbers[len(numbers)-1]
	if 0 < n && n < 3 {
		return "<0.1"
	}
	return strconv.FormatFloat(float64(n)/60, 'f', 1, 64)
}

// millis is the last number of a series of means, which is 0 where there was nothing to measure.
func millis(numbers []int64) string {
	if len(numbers) == 0 || numbers[len(numbers)-1] == 0 {
		return ""
	}
	return (time.Duration(numbers[len(numbers)-1]) * time.Millisecond).String()
}
