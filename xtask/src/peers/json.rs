//! As much of JSON as a line of measurements needs: an object of texts, numbers, nulls and objects of the same kind.

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text; the programs that are read here use no escapes.
    Text(String),
    /// A number.
    Number(f64),
    /// There is none.
    Null,
    /// Names and their values, in order.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Reads a whole line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let mut rest = Rest(line);
        let value = rest.value()?;
        rest.skip_spaces();
        if rest.0.is_empty() { Ok(value) } else { Err(rest.unexpected("the end")) }
    }

    /// The value called `name`, if this is an object that has one.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Object(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The number, if this is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// What is still to be read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    fn value(&mut self) -> Result<Value, String> {
        self.skip_spaces();
        match self.0.bytes().next() {
            Some(b'{') => self.object(),
            Some(b'"') => self.text().map(Value::Text),
            _ => {
                let length = self.0.find([',', '}']).unwrap_or(self.0.len());
                let (word, after) = self.0.split_at(length);
                let value = match word.trim() {
                    "null" => Value::Null,
                    word => match word.parse() {
                        Ok(number) => Value::Number(number),
                        Err(_) => return Err(self.unexpected("a value")),
                    },
                };
                self.0 = after;
                Ok(value)
            }
        }
    }

    fn object(&mut self) -> Result<Value, String> {
        let mut fields = Vec::new();
        self.take('{')?;
        loop {
            self.skip_spaces();
            let name = self.text()?;
            self.take(':')?;
            fields.push((name, self.value()?));
            self.skip_spaces();
            if self.0.starts_with('}') {
                self.take('}')?;
                return Ok(Value::Object(fields));
            }
            self.take(',')?;
        }
    }

    fn text(&mut self) -> Result<String, String> {
        self.take('"')?;
        match self.0.split_once('"') {
            Some((text, after)) if !text.contains('\\') => {
                self.0 = after;
                Ok(text.to_owned())
            }
            _ => Err(self.unexpected("a text without escapes")),
        }
    }

    fn take(&mut self, mark: char) -> Result<(), String> {
        self.skip_spaces();
        match self.0.strip_prefix(mark) {
            Some(after) => {
                self.0 = after;
                Ok(())
            }
            None => Err(self.unexpected(&format!("`{mark}`"))),
        }
    }

    fn skip_spaces(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn unexpected(&self, expected: &str) -> String {
        let found: String = self.0.chars().take(20).collect();
        format!("expected {expected}, found `{found}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_texts_numbers_nulls_and_objects() {
        let value = Value::parse(r#"{"a":"x y", "b": -1.5e3,"c":null,"d":{"e":2}} "#).unwrap();
        assert_eq!(value.field("a"), Some(&Value::Text("x y".into())));
        assert_eq!(value.field("b").and_then(Value::number), Some(-1500.0));
        assert_eq!(value.field("c"), Some(&Value::Null));
        assert_eq!(value.field("d").and_then(|inner| inner.field("e")), Some(&Value::Number(2.0)));
        assert_eq!(value.field("e"), None);
    }

    #[test]
    fn what_is_broken_is_refused_with_the_place() {
        for (line, expected) in [
            (r#"{"a":1"#, "expected `,`, found ``"),
            (r#"{"a":one}"#, "expected a value, found `one}`"),
            (r#"{"a":1} {"#, "expected the end, found `{`"),
            (r#"{"a\"":1}"#, "expected a text without escapes"),
        ] {
            let error = Value::parse(line).unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }
}
