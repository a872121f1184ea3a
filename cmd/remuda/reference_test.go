package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"remuda/internal/testkit/reference"
)

// environ are the names of environment variables in texts.
var environ = regexp.MustCompile(`\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b`)

// systemVariable is one of this machine's that could be in a flag's default.
var systemVariable = regexp.MustCompile(`^(?:REMUDA|GMS|NOMAD|CONSUL|XDG)_|^TMPDIR=`)

func TestReferenceCLI(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); systemVariable.MatchString(kv) {
			t.Setenv(name, "") // so that it is as it was afterwards
			os.Unsetenv(name)
		}
	}
	p := &program{ctx: context.Background(), stdin: strings.NewReader(""), stdout: &strings.Builder{}, stderr: &strings.Builder{}}
	verbs := p.verbs()
	delete(verbs, gmsServeVerbName)
	delete(verbs, simWorkerVerbName)

	var b strings.Builder
	fmt.Fprintf(&b, "## remuda\n\n%s %s\n\n", "Exit codes:", strings.Join([]string{
		fmt.Sprintf("`%d` for success,", exitOK),
		fmt.Sprintf("`%d` for a failure, whose reason is printed to standard error,", exitFailed),
		fmt.Sprintf("`%d` for a wrong command line.", exitUsage),
	}, " "))
	names := slices.Sorted(maps.Keys(verbs))
	var rows [][]string
	for _, name := range names {
		rows = append(rows, []string{fmt.Sprintf("[`%s`](#remuda-%s)", name, strings.ReplaceAll(name, " ", "-")), reference.Sentence(verbs[name].synopsis)})
	}
	b.WriteString(reference.Table([]string{"Command", "What it does"}, rows))
	lists := map[string][]flagOf{}
	count := map[flagOf]int{}
	for _, name := range names {
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		verbs[name].setup(fs)
		fs.VisitAll(func(f *flag.Flag) {
			value, usage := flag.UnquoteUsage(f)
			one := flagOf{name: "-" + f.Name, value: value, standard: defaultOf(f), usage: usage}
			lists[name] = append(lists[name], one)
			count[one]++
		})
	}
	var common []flagOf
	for f, n := range count {
		if n >= many {
			common = append(common, f)
		}
	}
	slices.SortFunc(common, func(a, b flagOf) int { return strings.Compare(a.name, b.name) })
	fmt.Fprintf(&b, "\n### Common flags\n\nThe commands below name those of these flags that they take.\n\n%s", flagTable(common))
	for _, name := range names {
		v := verbs[name]
		fmt.Fprintf(&b, "\n### remuda %s\n\n%s\n%s\n\n", name,
			reference.Block("text", strings.TrimSpace(fmt.Sprintf("remuda %s %s", name, v.usage))), reference.Text(strings.TrimSpace(v.about)))
		var own []flagOf
		var shared []string
		text := v.about
		for _, f := range lists[name] {
			text += "\n" + f.usage
			if slices.Contains(common, f) {
				shared = append(shared, f.name)
				continue
			}
			own = append(own, f)
		}
		if len(own) > 0 {
			b.WriteString(flagTable(own) + "\n")
		}
		if len(shared) > 0 {
			fmt.Fprintf(&b, "[Common flags](#common-flags): %s.\n", reference.Codes(shared))
		}
		if vars := environ.FindAllString(text, -1); len(vars) > 0 {
			slices.Sort(vars)
			fmt.Fprintf(&b, "\nEnvironment variables: %s.\n", reference.Codes(slices.Compact(vars)))
		}
	}
	reference.Section(t, "cli.md", "remuda", b.String())
}

// many is how many commands take a flag that is explained once.
const many = 10

// flagOf is a flag of a command.
type flagOf struct{ name, value, standard, usage string }

func flagTable(flags []flagOf) string {
	var rows [][]string
	for _, f := range flags {
		rows = append(rows, []string{reference.Code(strings.TrimSpace(f.name + " " + f.value)), f.standard, reference.Sentence(reference.Text(f.usage))})
	}
	return reference.Table([]string{"Flag", "Default", "Meaning"}, rows)
}

// defaultOf writes a flag's default as it would be given, nothing where that is empty.
func defaultOf(f *flag.Flag) string {
	d, isBool := f.DefValue, false
	if b, ok := f.Value.(interface{ IsBoolFlag() bool }); ok {
		isBool = b.IsBoolFlag()
	}
	if d == "" || isBool && d == "false" {
		return ""
	}
	return reference.Code(cmp.Or(d, `""`))
}
