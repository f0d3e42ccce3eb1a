//! First steps: operations on tensors, awaited, and memory that another library may borrow.
//!
//! Run it with `cargo run --release --example hello`.

use estafette::{Access, DType, Engine, Error, Produced};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let engine = Engine::builder().workers(2).build()?;
    let x = engine.from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[4])?;
    let y = engine.zeros(&[4], DType::F32)?;

    // Submitting returns at once. The body runs as soon as everything before it on `x` and `y` lets it.
    engine.op("double").reads([&x]).writes([&y]).run(|[x], [mut y]| {
        for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
            *y = 2.0 * x;
        }
        Ok(())
    })?;

    // A result can be used before it exists: `total` is a promise, and so is `mean`.
    let total = engine.op("total").reads([&y]).produce(|[y]| {
        let total: f32 = y.as_slice::<f32>()?.iter().sum();
        Ok(Produced::from_vec(vec![total], &[1])?)
    })?;
    let mean = engine.op("mean").reads([&total, &y]).produce(|[total, y]| {
        let mean = total.as_slice::<f32>()?[0] / y.layout().len() as f32;
        Ok(Produced::from_vec(vec![mean], &[1])?)
    })?;

    // Any executor will do, and no thread blocks. A failed operation would show here, with its name.
    mean.ready().await?;
    println!("mean of {:?} is {:?}", y.to_vec::<f32>()?, mean.to_vec::<f32>()?);

    // Any library that speaks DLPack may borrow `y`. Operations that write it wait until the loan is returned.
    let loan = y.export(Access::Read).await?;
    let clear = engine.op("clear").writes([&y]).run(|[], [mut y]| {
        y.as_mut_slice::<f32>()?.fill(0.0);
        Ok(())
    })?;
    println!("lent out: {loan:?}; cleared: {}", clear.is_done());
    drop(loan);
    clear.await?;
    println!("returned and cleared: {:?}", y.to_vec::<f32>()?);
    Ok(())
}
