package ui

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/internal/bytesize"
)

// functions are what templates may call.
var functions = template.FuncMap{
	"bytes": bytesize.Text, "count": count, "short": short, "duration": duration, "share": share, "dict": dict,
	"rollouts": rolloutsOf, "problemName": problemName, "problemLink": problemLink, "nodeLink": nodeLink, "plural": plural,
	"spark": spark[int64], "timeline": timeline, "sparkInt": spark[int], "perSecond": perSecond, "millis": millis,
	"sum": sum, "seatsBy": seatsBy, "list": func(of ...string) []string { return of },
}

// count writes a whole number with separators, as 12,345.
func count(n any) string {
	text := fmt.Sprint(n)
	sign := ""
	if text[0] == '-' {
		sign, text = "-", text[1:]
	}
	var b strings.Builder
	for i, c := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

// short is the beginning of an ID, long enough to tell it from others.
func short(id string) string {
	const enough = 8
	if len(id) > enough {
		return id[:enough]
	}
	return id
}

// duration writes a duration of the API; 0 is empty.
func duration(d api.Duration) string {
	if d == 0 {
		return ""
	}
	return time.Duration(d).Round(100 * time.Millisecond).String()
}

// share is a part of a whole in percent of a width, for SVG.
func share(part, whole int64) string {
	if whole <= 0 || part <= 0 {
		return "0%"
	}
	return strconv.FormatFloat(min(100*float64(part)/float64(whole), 100), 'f', 2, 64) + "%"
}

// plural writes a number with the right word.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

func sum(of ...int64) int64 {
	var n int64
	for _, v := range of {
		n += v
	}
	return n
}

// seatsBy counts a GPU's seats by the replica that has them, "" for free ones.
func seatsBy(g api.GPU) map[string]int {
	by := map[string]int{}
	for _, s := range g.Seats {
		by[s.Replica]++
	}
	return by
}

// dict makes a map of names and values, for a template that takes several.
func dict(pairs ...any) (map[string]any, error) {
	out := map[string]any{}
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict takes names and values, not %d arguments", len(pairs))
	}
	for i := 0; i < len(pairs); i += 2 {
		out[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return out, nil
}
