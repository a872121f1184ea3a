// Package schema makes a JSON value that satisfies a JSON schema.
//
// It guarantees the same value for the same schema and seed, and that the value
// satisfies type, enum, const, required, properties, items, prefixItems, minItems,
// maxItems, uniqueItems, the bounds of numbers, multipleOf, minLength, maxLength,
// pattern, the common formats, $ref into the schema, allOf, and the first schema of
// anyOf and oneOf. Other keywords are ignored. Optional properties are in the value,
// except deep inside it, so that a schema which refers to itself has an end.
package schema
