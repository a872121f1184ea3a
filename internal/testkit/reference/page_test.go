package reference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every section of every page is there, with nothing between the sections, and there is no
// page of which nothing is known.
func TestPages(t *testing.T) {
	at := filepath.Join(Root(t), dir)
	for name, p := range pages {
		raw, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			t.Errorf("%v; run: make reference", err)
			continue
		}
		if p.with(string(raw), "", "") != string(raw) {
			t.Errorf("%s/%s has another frame than package reference says; run: make reference", dir, name)
		}
		for _, s := range p.sections {
			if strings.TrimSpace(cut(string(raw), s)) == "" {
				t.Errorf("%s/%s: section %q is empty; run: make reference", dir, name, s)
			}
		}
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, known := pages[e.Name()]; !known && e.Name() != "README.md" {
			t.Errorf("%s/%s is a page of which package reference does not know", dir, e.Name())
		}
	}
}

func TestPageKeepsOtherSections(t *testing.T) {
	p := page{title: "T", intro: "I", sections: []string{"a", "b"}}
	one := p.with("", "b", "B\n")
	two := p.with(one, "a", "A\n")
	if cut(two, "a") != "A\n" || cut(two, "b") != "B\n" || strings.Index(two, "A\n") > strings.Index(two, "B\n") {
		t.Errorf("the page is %q", two)
	}
	if three := p.with(two, "b", "C\n"); cut(three, "a") != "A\n" || cut(three, "b") != "C\n" {
		t.Errorf("the page is %q", three)
	}
	if d := difference("x\ny\n", "x\nz\n"); !strings.Contains(d, "line 2") || !strings.Contains(d, "is:     y") || !strings.Contains(d, "should: z") {
		t.Errorf("the difference is %q", d)
	}
}
