package reference

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// JSON lists the fields of a struct as its JSON has them. Fields of structs in it have the
// name of the outer one before theirs, as "consul.failures". With defaults the values are
// shown, too.
func JSON(t testing.TB, of any, defaults bool) string {
	t.Helper()
	rows := jsonRows(t, reflect.ValueOf(of), "")
	header := []string{"Field", "Type", "Default", "Meaning"}
	if !defaults {
		header = []string{"Field", "Type", "Meaning"}
		for i, r := range rows {
			rows[i] = []string{r[0], r[1], r[3]}
		}
	}
	return Table(header, rows)
}

func jsonRows(t testing.TB, v reflect.Value, prefix string) [][]string {
	names := map[string]string{}
	typ := v.Type()
	for i := range typ.NumField() {
		if name := jsonName(typ.Field(i)); name != "" {
			names[typ.Field(i).Name] = name
		}
	}
	var rows [][]string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, ok := names[f.Name]
		if f.Anonymous {
			rows = append(rows, jsonRows(t, v.Field(i), prefix)...)
			continue
		}
		if !ok {
			continue
		}
		doc := Reworded(FieldDoc(t, typ, f.Name), names)
		inner, list := f.Type, ""
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct {
			inner, list = inner.Elem(), "[]"
		}
		value := ""
		if raw, err := json.Marshal(v.Field(i).Interface()); err == nil && inner.Kind() != reflect.Struct {
			value = Code(string(raw))
		}
		if doc == "" && inner.Kind() != reflect.Struct {
			t.Errorf("the field %s of %s has no comment: write one", f.Name, typ)
		}
		nested := inner.Kind() == reflect.Struct && !inner.Implements(reflect.TypeFor[encoding.TextMarshaler]())
		rows = append(rows, []string{Code(prefix + name + list), jsonType(f.Type), value, doc})
		if nested {
			fields := reflect.Zero(inner)
			if f.Type == inner {
				fields = v.Field(i)
			}
			rows = append(rows, jsonRows(t, fields, prefix+name+list+".")...)
		}
	}
	return rows
}

// jsonName is a field's name in JSON, empty where it is not in it.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case !f.IsExported() || name == "-":
		return ""
	case name == "":
		return f.Name
	}
	return name
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "string"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		return "list of " + plural(jsonType(t.Elem()))
	case reflect.Map:
		return "object"
	case reflect.Struct:
		switch {
		case t == reflect.TypeFor[time.Time]():
			return "time"
		case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
			return "string"
		}
		return "object"
	}
	return "whole number"
}

func plural(noun string) string {
	if strings.HasPrefix(noun, "list of ") {
		return "lists of " + strings.TrimPrefix(noun, "list of ")
	}
	return noun + "s"
}
